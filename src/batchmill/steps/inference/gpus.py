"""The GPUs of this machine that the shards of a run use."""

import os

from batchmill.core.user_step.load import Step


def check_device(step: Step) -> None:
    """Raise StepError if the parameter `device` of a batch step names a GPU that is not here."""
    device = str(step.params.get("device", ""))
    if step.is_batched and device.startswith("cuda"):
        from batchmill.steps.inference.models import choose_device

        choose_device(device)


def gpus_for(step: Step) -> list[str]:
    """Return the GPUs that a step can use, by their names in CUDA_VISIBLE_DEVICES."""
    if not step.takes_any_gpu:
        return []
    import torch  # The step has already loaded it.

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = given.split(",") if given else map(str, range(count))
    return [name.strip() for name in names][:count]

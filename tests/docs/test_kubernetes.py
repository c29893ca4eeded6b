"""The manifests for Kubernetes: valid by its own schemas, and of one mind."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
VERSION = "1.33"
# Fields of KubeRay's RayCluster (ray.io/v1), from its reference, as far as they are used here.
SPEC = {
    "rayVersion": str,
    "authOptions": dict,
    "enableInTreeAutoscaling": bool,
    "headGroupSpec": dict,
    "workerGroupSpecs": list,
}
GROUP = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "rayStartParams": dict,
    "template": dict,
}


def documents():
    for file in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield pytest.param(document, id=f"{file.name}:{document['kind']}")


def pods():
    for parameter in documents():
        (document,) = parameter.values
        spec = document.get("spec", {})
        groups = [spec.get("headGroupSpec"), *spec.get("workerGroupSpecs", []), spec]
        yield from (group["template"] for group in groups if group and "template" in group)


@pytest.mark.parametrize("document", list(documents()))
def test_it_is_valid(document):
    if document["kind"] != "RayCluster":
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    assert document["apiVersion"] == "ray.io/v1"
    spec = document["spec"]
    check(spec, SPEC)
    assert spec["authOptions"] == {"mode": "token"}
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        check(group, GROUP)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
        kubernetes_validate.validate(pod | group["template"], VERSION, strict=True)


def check(fields, known):
    for name, value in fields.items():
        assert isinstance(value, known[name]), name


def test_they_are_valid_for_a_reason():
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": 1}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_what_one_refers_to_another_defines():
    names = {(d["kind"], d["metadata"]["name"]) for p in documents() for d in p.values}
    # What the operator makes of the RayCluster, and what the page tells to make.
    secrets = {name for kind, name in names if kind in ("Secret", "RayCluster")} | {
        "batchmill-store"
    }
    images = set()
    for pod in pods():
        for container in pod["spec"]["containers"]:
            images.add(container["image"])
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or reference["name"] in secrets
            for source in container.get("envFrom", []):
                assert source["secretRef"]["name"] in secrets
    assert len([image for image in images if "batchmill" in image]) == 1


def test_the_versions_are_those_that_were_tested():
    constraints = (FOLDER.parents[1] / "constraints.txt").read_text()
    versions = dict(line.split("==") for line in constraints.splitlines() if "==" in line)
    text = "".join(file.read_text() for file in FOLDER.iterdir())
    assert f"rayproject/ray:{versions['ray']}-py311" in text
    assert f"rayVersion: {versions['ray']}" in text
    assert f"prefecthq/prefect:{versions['prefect']}-python3.11" in text

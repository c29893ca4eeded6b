"""The manifests for Kubernetes are valid by its schemas, and consistent."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
VERSION = "1.33"
# The fields of KubeRay's RayCluster (ray.io/v1) that the manifests use, from its reference.
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
def test_each_document_is_valid(document):
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


def test_an_invalid_pod_is_rejected():
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": 1}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_references_between_documents_resolve():
    names = {(d["kind"], d["metadata"]["name"]) for p in documents() for d in p.values}
    # The operator creates a secret for the RayCluster. cluster.md creates `batchmill-store`.
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


def test_the_images_have_the_versions_of_the_constraints():
    constraints = (FOLDER.parents[1] / "constraints.txt").read_text()
    versions = dict(line.split("==") for line in constraints.splitlines() if "==" in line)
    text = "".join(file.read_text() for file in FOLDER.iterdir())
    assert f"rayproject/ray:{versions['ray']}-py311" in text
    assert f"rayVersion: {versions['ray']}" in text
    assert f"prefecthq/prefect:{versions['prefect']}-python3.11" in text

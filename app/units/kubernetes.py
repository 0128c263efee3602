"""Kubernetes objects of one server: Deployment or LeaderWorkerSet, Service, claim.

Objects are made as data and written as YAML, so that no name can break out of its place.
"""

from __future__ import annotations

from typing import Any

from app.units.compose import image_files
from app.units.deployment import (
    PRE_STOP_S,
    PROBE_PERIOD_S,
    PROBE_TIMEOUT_S,
    Deployment,
    GeneratedFile,
)
from app.units.words import Secret, environment_file, secrets_of, yaml_text

_MODELS = "/models"
_USER_ID = 1000


def kubernetes_files(deployment: Deployment, version: str) -> list[GeneratedFile]:
    """Every object but the Secret, and the file that a command makes the Secret from."""
    documents = [_claim(deployment), _workload(deployment), _service(deployment)]
    return [
        GeneratedFile(f"{deployment.unit_name}.yaml", yaml_text(*documents)),
        environment_file(deployment),
        *image_files(deployment, version),
    ]


def kubernetes_steps(deployment: Deployment) -> list[str]:
    """The commands that make the secret and apply the file."""
    name = deployment.unit_name
    image = [f"docker build -t {deployment.image} .   # and push it where the cluster pulls from"]
    return [
        *(image if deployment.is_supervised else []),
        f"chmod 600 {name}.env   # and put the secrets into it",
        f"kubectl create secret generic {name} --from-env-file={name}.env",
        f"kubectl apply -f {name}.yaml",
        f"kubectl rollout status deployment/{name}"
        if deployment.nodes == 1
        else f"kubectl get leaderworkerset {name}",
        f"kubectl port-forward service/{name} {deployment.port}:{deployment.port}",
    ]


def _labels(deployment: Deployment) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": deployment.unit_name,
        "app.kubernetes.io/managed-by": "stoker",
    }


def _metadata(deployment: Deployment) -> dict[str, Any]:
    return {"name": deployment.unit_name, "labels": _labels(deployment)}


def _claim(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(deployment),
        "spec": {
            # Pods of several nodes share it.
            "accessModes": ["ReadWriteOnce" if deployment.nodes == 1 else "ReadWriteMany"],
            "resources": {"requests": {"storage": f"{deployment.cache_gib}Gi"}},
        },
    }


def _service(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment),
        "spec": {
            "selector": _labels(deployment),
            "ports": [{"name": "http", "port": deployment.port, "targetPort": "http"}],
        },
    }


def _workload(deployment: Deployment) -> dict[str, Any]:
    template = _template(deployment, ())
    if deployment.nodes > 1:
        group = ("--nnodes", str(deployment.nodes), "--master-addr", "$(LWS_LEADER_ADDRESS)")
        leader = _template(deployment, (*group, "--node-rank", "0"))
        rank = ("--node-rank", "$(LWS_WORKER_INDEX)", "--headless")
        worker = _template(deployment, (*group, *rank), is_worker=True)
        return {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": _metadata(deployment),
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {
                    "size": deployment.nodes,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": leader,
                    "workerTemplate": worker,
                },
            },
        }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(deployment),
        "spec": {
            "replicas": 1,
            # Two pods at once would want the same card and the same claim.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": deployment.timing.start_timeout_s + 60,
            "selector": {"matchLabels": _labels(deployment)},
            "template": template,
        },
    }


def _template(
    deployment: Deployment, more_args: tuple[str, ...], *, is_worker: bool = False
) -> dict[str, Any]:
    """A pod; a worker of a group serves no HTTP, so that nothing asks it and no client finds it."""
    labels = _labels(deployment)
    pod = _pod(deployment)
    container = pod["containers"][0]
    container["args"] = [*container["args"], *more_args]
    if is_worker:
        labels = {**labels, "app.kubernetes.io/name": f"{deployment.unit_name}-worker"}
        for key in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
            del container[key]
    return {"metadata": {"labels": labels}, "spec": pod}


def _pod(deployment: Deployment) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": deployment.timing.grace_s,
        "securityContext": {"fsGroup": _USER_ID},
        "containers": [_container(deployment)],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": deployment.unit_name}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }


def _container(deployment: Deployment) -> dict[str, Any]:
    timing, gpus = deployment.timing, deployment.gpus
    supervised = deployment.is_supervised
    probe_port = "status" if supervised else "http"
    paths = ("/startupz", "/readyz", "/livez") if supervised else ("/health",) * 3
    ports = [{"name": "http", "containerPort": deployment.port}]
    if supervised:
        ports.append({"name": "status", "containerPort": deployment.status_port})
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {
        "name": "server",
        "image": deployment.image,
        "args": list(deployment.container_args),
        "ports": ports,
        "env": _environment(deployment),
        "resources": limits,
        "startupProbe": _probe(paths[0], probe_port, timing.startup_failures),
        "readinessProbe": _probe(paths[1], probe_port, 3),
        "livenessProbe": _probe(paths[2], probe_port, 6),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **({"runAsNonRoot": True, "runAsUser": _USER_ID} if supervised else {}),
        },
        "volumeMounts": [
            {"name": "models", "mountPath": _MODELS},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _probe(path: str, port: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": failures,
    }


def _environment(deployment: Deployment) -> list[dict[str, Any]]:
    plain = {
        **deployment.caches(_MODELS),
        "STOKER_CACHE_DIR": f"{_MODELS}/stoker",
        **deployment.environment,
    }
    return [
        *({"name": key, "value": value} for key, value in plain.items()),
        *(
            {"name": secret.variable, "valueFrom": {"secretKeyRef": _key(deployment, secret)}}
            for secret in secrets_of(deployment, in_container=True)
        ),
    ]


def _key(deployment: Deployment, secret: Secret) -> dict[str, Any]:
    # A pod that is open to its cluster does not start without its key.
    optional = {} if secret.is_required else {"optional": True}
    return {"name": deployment.unit_name, "key": secret.variable, **optional}

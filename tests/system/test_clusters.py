"""docs/clusters.md: manifests for Kubernetes and scripts for Slurm fit their schemas, our commands, and each other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from test_containers import CHECKS

import fedpriv
from fedpriv.commands import node
from fedpriv.config.compose import compose

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/clusters.md").read_text()
FILES = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
PARTS = [part for file in FILES for part in yaml.safe_load_all(file.read_text())]
PODS = {part["metadata"]["name"]: part["spec"]["template"]["spec"] for part in PARTS if "template" in part["spec"]}
SCRIPTS = sorted((ROOT / "deploy/slurm").glob("*.sh"))
#: Of sbatch, the long options that scripts and page use: `sbatch --test-only` of Slurm 22.05 took them.
SBATCH = {
    *("array", "cpus-per-task", "exclusive", "gpus", "gpus-per-node", "gpus-per-task", "job-name", "mem", "nodes"),
    *("ntasks", "ntasks-per-node", "open-mode", "requeue", "signal", "time", "wrap"),
}


def named(kind: str) -> list[str]:
    return [part["metadata"]["name"] for part in PARTS if part["kind"] == kind]


# --- Kubernetes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part['kind']}-{part['metadata']['name']}")
def test_a_manifest_fits_its_schema(part: dict[str, Any]) -> None:
    kubernetes_validate.validate(part, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_hardened_and_calls_what_there_is(name: str) -> None:
    pod = PODS[name]
    security = pod["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False and not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert not any("hostPath" in volume for volume in volumes.values())
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        kept = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == kept and container["resources"]["limits"].keys() == {"cpu", "memory"}
        assert re.fullmatch(rf"fedpriv-super(link|node):{re.escape(fedpriv.__version__)}", container["image"])
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            assert ("secret" in volume or "configMap" in volume) == mount.get("readOnly", False), mount
    (container,) = pod["containers"]
    options = dict(option.partition("=")[::2] for option in container["args"])
    CHECKS["fedpriv.superlink" if name == "superlink" else "fedpriv.node"](container["args"])
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    for option in ("credentials", "policy", "data", "database"):
        if option in options:
            assert any(Path(options[option]).is_relative_to(place) for place in places), option
    if name != "superlink":  # the counter has a volume of its own
        counter = str(Path(yaml.safe_load(node.TEMPLATE)["counter"]).parent)
        claims = [places[place]["persistentVolumeClaim"]["claimName"] for place in ("/data", counter)]
        assert len({*claims}) == 2 and {*claims} <= {*named("PersistentVolumeClaim")}
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    if ports:
        assert ports["metrics"] == int(options["metrics_port"])
        (policy,) = [part for part in PARTS if part["kind"] == "NetworkPolicy" and part["metadata"]["name"] == name]
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports.keys()
        probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
        assert all(probe.get("httpGet", {"port": "metrics"})["port"] in ports for probe in probes)
        for code in (probe["exec"]["command"] for probe in probes if "exec" in probe):
            compile(code[2], "probe", "exec")


def test_the_control_port_is_in_no_service_and_nodes_reach_the_server_alone() -> None:
    (service,) = [part for part in PARTS if part["kind"] == "Service"]
    assert [port["port"] for port in service["spec"]["ports"]] == [8000]
    assert all(part["spec"]["replicas"] == 1 for part in PARTS if part["kind"] == "StatefulSet")
    (policy,) = [part for part in PARTS if part["kind"] == "NetworkPolicy" and part["metadata"]["name"] == "node-0"]
    server, names = policy["spec"]["egress"]
    assert server["to"] == [{"podSelector": {"matchLabels": service["spec"]["selector"]}}]
    assert {port["port"] for port in (*server["ports"], *names["ports"])} == {8000, 53}


def test_another_node_is_another_in_all_its_parts() -> None:
    """By the command that the manifest names; a label of the first node would delete the second with it."""
    (program,) = re.findall(r"\(sed '([^']*)'\)", (ROOT / "deploy/kubernetes/node.yaml").read_text())
    for file in FILES:
        if file.stem.startswith("node"):
            done = subprocess.run(["sed", program, str(file)], check=True, capture_output=True, text=True)
            assert "node-0" not in re.sub("(?m)^#.*", "", done.stdout) and "client=0" not in done.stdout, file.name


# --- Slurm and Ray -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash_and_asks_for_what_there_is(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    asked = re.findall(r"(?m)^#SBATCH (.*)$", script.read_text())
    assert asked and all(re.fullmatch(r"--([a-z-]+)(=\S+)?", line) for line in asked)
    assert {line[2:].partition("=")[0] for line in asked} <= SBATCH


def test_a_job_that_begins_again_goes_on(tmp_path: Path) -> None:
    """`srun` is a stub: tried with Slurm itself, the script does the same."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text('#!/bin/sh\nshift\nexec "$PYTHON" "$@"\n')
    (tmp_path / "bin/srun").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHON": sys.executable}
    environment |= {"SLURM_ARRAY_TASK_ID": "3"}
    options = ["num_clients=4", "clients_per_round=4", "num_rounds=2", "operations.report=false"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / "deploy/slurm/run.sh"), "seeds", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = run(*options)
    assert done.returncode == 0, done.stderr
    assert "seed: 3" in (tmp_path / "seeds/3/config.yaml").read_text()
    assert run(*options).stdout == ""  # it has finished
    (tmp_path / "seeds/3/summary.json").unlink()
    done = run(*options)
    assert done.returncode == 0 and (tmp_path / "seeds/3/summary.json").is_file(), done.stderr


@pytest.mark.parametrize(
    "line", [line.strip() for line in PAGE.splitlines() if re.match("    (kubectl|sbatch|ray) ", line)]
)
def test_a_documented_command_is_taken(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "kubectl":
        assert words[1] in ("create", "apply", "exec", "wait", "cp")
        if words[1] == "apply":
            assert (ROOT / words[3]).is_file()
        if words[1:3] == ["create", "secret"]:
            assert any(
                volume.get("secret", {}).get("secretName") == words[4]
                for pod in PODS.values()
                for volume in pod["volumes"]
            )
        if words[1:3] == ["create", "configmap"]:
            assert any(
                volume.get("configMap", {}).get("name") == words[3]
                for pod in PODS.values()
                for volume in pod["volumes"]
            )
    elif words[0] == "sbatch":
        given = [word for word in words[1:] if word.startswith("--")]
        assert {word[2:].partition("=")[0] for word in given} <= SBATCH
        rest = [word for word in words[1:] if word not in given]
        if "--wrap" in given:
            called = shlex.split(rest[0])
            assert called[:2] == [".venv/bin/fedpriv", "-m"]
            compose([re.sub(",.*", "", option) for option in called[2:] if not option.startswith("hydra")])
        else:
            assert (ROOT / rest[0]) in SCRIPTS
            compose(rest[2:])
    else:
        compose([option for option in words[words.index("fedpriv") + 1 :] if not option.startswith("hydra")])

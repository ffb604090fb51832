"""Tests that manifests are what those who read them expect.

Published schemas say so: those of Kubernetes, JobSet, TFJob and Compose. In all
of them, unknown fields are refused.
"""

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tfps_plugin.cluster.serving import chief_watch
from tfps_plugin.cluster.tf_config import parse_tf_config
from tfps_plugin.deployment import formats
from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.testing import make_job

_SCHEMAS = pathlib.Path(__file__).parent / "published_schemas"
# The oldest release that has what the manifests use, and the newest known here.
_KUBERNETES = ("1.29", kubernetes_validate.latest_version())
_KUBERNETES_FORMATS = ("jobset", "tfjob", "plain")

_JOBS = {
    "small": make_job(workers=1, ps=1),
    "large": make_job(
        workers=12,
        ps=3,
        evaluator=True,
        port=4000,
        checkpoint_claim="checkpoints",
        environment=(("DATA", "gs://a/$(B) $C"),),
        secrets=(("TOKEN", "monitor", "the.token"),),
        arguments=("--text", "$(HOME) $HOME 'a' \"b\" \n: yes"),
    ),
}


def _documents(format_name: str, job: DeployedJob) -> list[Any]:
    return list(yaml.safe_load_all(formats.text(format_name, job)))


def _of_kind(documents: list[Any], kind: str) -> list[Any]:
    return [each for each in documents if each["kind"] == kind]


def _check(schema: str, document: Any) -> None:
    text = (_SCHEMAS / f"{schema}.json").read_text()
    jsonschema.Draft7Validator(json.loads(text)).validate(document)


def _check_kubernetes(document: Any) -> None:
    for version in _KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def _templates(document: Any) -> Iterator[tuple[str, Any]]:
    """Yields the kind of tasks and the template of each kind of pod."""
    if document["kind"] == "Job":
        template = document["spec"]["template"]
        yield (
            template["metadata"]["labels"]["app.kubernetes.io/component"],
            (template),
        )
    elif document["kind"] == "JobSet":
        for job in document["spec"]["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["template"]
    elif document["kind"] == "TFJob":
        for kind, replica in document["spec"]["tfReplicaSpecs"].items():
            yield kind.lower(), replica["template"]


def _all_templates(format_name: str, job: DeployedJob) -> dict[str, Any]:
    return {
        kind: template
        for document in _documents(format_name, job)
        for kind, template in _templates(document)
    }


@pytest.mark.parametrize("job", _JOBS.values(), ids=_JOBS)
@pytest.mark.parametrize("name", _KUBERNETES_FORMATS)
def test_kubernetes_accepts_it(name: str, job: DeployedJob) -> None:
    documents = _documents(name, job)
    for document in documents:
        if document["kind"] == "JobSet":
            _check("jobset", document)
            for each in document["spec"]["replicatedJobs"]:
                _check_kubernetes(
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "metadata": {"name": each["name"]},
                        **each["template"],
                    }
                )
        elif document["kind"] == "TFJob":
            _check("tfjob", document)
            for _, template in _templates(document):
                _check_kubernetes(
                    {"apiVersion": "v1", "kind": "Pod", **template}
                )
        else:
            _check_kubernetes(document)
    assert documents[0]["kind"] == "NetworkPolicy"


@pytest.mark.parametrize("job", _JOBS.values(), ids=_JOBS)
def test_compose_accepts_it(job: DeployedJob) -> None:
    (document,) = _documents("compose", job)
    _check("compose", document)


@pytest.mark.parametrize("job", _JOBS.values(), ids=_JOBS)
def test_bash_accepts_what_is_for_slurm(
    job: DeployedJob, tmp_path: pathlib.Path
) -> None:
    job = make_job(
        image=None, arguments=job.arguments, environment=job.environment
    )
    script = tmp_path / "job.sh"
    script.write_text(formats.text("slurm", job, ["--partition=gpu"]))
    subprocess.run(["bash", "-n", script], check=True, timeout=30)
    assert script.read_text().count("#SBATCH --partition=gpu\n") == 3


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ("jobset", ("spec",)),
        ("jobset", ("spec", "replicatedJobs", 0)),
        ("tfjob", ("spec", "tfReplicaSpecs", "Chief")),
        ("compose", ("services", "chief")),
    ],
)
def test_unknown_fields_are_found(
    schema: str, place: tuple[str | int, ...]
) -> None:
    document = _documents(schema, _JOBS["large"])[-1]
    _check(schema, document)
    part = document
    for key in place:
        part = part[key]
    part["nonsense"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="nonsense"):
        _check(schema, document)


def test_unknown_fields_of_pods_are_found() -> None:
    job = _documents("plain", _JOBS["large"])[-1]
    job["spec"]["template"]["spec"]["nonsense"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="nonsense"):
        _check_kubernetes(job)


def _variables(template: Any) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return {each["name"]: each for each in container["env"]}


@pytest.mark.parametrize(
    ("name", "namespace", "worker", "chief"),
    [
        (
            "jobset",
            None,
            "ranking-worker-0-2.ranking:2222",
            "ranking-chief-0-0.ranking:2222",
        ),
        (
            "jobset",
            "ml",
            "ranking-worker-0-2.ranking.ml.svc:2222",
            "ranking-chief-0-0.ranking.ml.svc:2222",
        ),
        (
            "plain",
            None,
            "ranking-worker-2.ranking:2222",
            "ranking-chief-0.ranking:2222",
        ),
    ],
)
def test_a_task_knows_itself_and_all_others(
    name: str, namespace: str | None, worker: str, chief: str
) -> None:
    job = make_job(namespace=namespace)
    documents = _documents(name, job)
    for document in documents:
        assert document["metadata"].get("namespace") == namespace
    for kind, template in _all_templates(name, job).items():
        variables = _variables(template)
        # Kubernetes replaces references to variables that come before.
        assert list(variables)[:2] == ["TFPS_TASK_INDEX", "TF_CONFIG"]
        for index in range(job.count(kind)):
            text = variables["TF_CONFIG"]["value"]
            config = parse_tf_config(
                text.replace("$(TFPS_TASK_INDEX)", str(index))
            )
            assert (config.job, config.index) == (kind, index)
            assert config.cluster.worker_addresses[2] == worker
            assert config.cluster.chief_address == chief
            assert len(config.cluster.ps_addresses) == 2


def test_the_index_is_that_of_the_pod_in_its_job() -> None:
    for template in _all_templates("plain", make_job()).values():
        source = _variables(template)["TFPS_TASK_INDEX"]["valueFrom"]
        assert source["fieldRef"]["fieldPath"] == (
            "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        )


def test_plain_pods_have_the_names_that_the_others_use() -> None:
    documents = _documents("plain", make_job())
    (service,) = _of_kind(documents, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for job in _of_kind(documents, "Job"):
        # Kubernetes calls pods of an indexed job JOB-INDEX.
        assert job["spec"]["completionMode"] == "Indexed"
        template = job["spec"]["template"]
        assert template["spec"]["subdomain"] == service["metadata"]["name"]
        labels = template["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()


def test_a_tf_config_of_the_training_operator_is_read() -> None:
    """The operator writes it; this is the form that it has there."""
    text = (
        '{"cluster":{"chief":["ranking-chief-0.ml.svc:2222"],'
        '"ps":["ranking-ps-0.ml.svc:2222"],'
        '"worker":["ranking-worker-0.ml.svc:2222"]},'
        '"task":{"type":"worker","index":0},"environment":"cloud"}'
    )
    config = parse_tf_config(text)
    assert str(config.task) == "worker 0"
    assert "TF_CONFIG" not in formats.text("tfjob", make_job())


def test_the_training_operator_finds_container_and_port() -> None:
    for kind, template in _all_templates("tfjob", make_job()).items():
        (container,) = template["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["ports"][0]["name"] == "tfjob-port", kind


def test_compose_names_services_like_hosts() -> None:
    (document,) = _documents("compose", make_job(evaluator=True))
    services = document["services"]
    for name, service in services.items():
        config = parse_tf_config(service["environment"]["TF_CONFIG"])
        assert name.startswith(config.job)
        hosts = {task.host for task in config.cluster.tasks}
        assert hosts == set(services) - {"evaluator"}


@pytest.mark.parametrize("name", _KUBERNETES_FORMATS)
def test_only_pods_of_the_job_are_let_in(name: str) -> None:
    job = make_job(evaluator=True)
    (policy,) = _of_kind(_documents(name, job), "NetworkPolicy")
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    wanted = spec["podSelector"]["matchLabels"]
    templates = _all_templates(name, job)
    assert len(templates) == 4
    for template in templates.values():
        assert wanted.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("name", _KUBERNETES_FORMATS)
def test_pods_are_restricted(name: str) -> None:
    """Restrictions of the `restricted` Pod Security Standard."""
    for template in _all_templates(name, make_job()).values():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 1000
        profile = spec["securityContext"]["seccompProfile"]
        assert profile == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}


@pytest.mark.parametrize("name", _KUBERNETES_FORMATS)
def test_a_worker_has_time_to_leave(name: str) -> None:
    for template in _all_templates(name, make_job(drain_seconds=90)).values():
        assert template["spec"]["terminationGracePeriodSeconds"] == 95
        # So that the script is not process 1, which gets no SIGTERM.
        assert template["spec"]["shareProcessNamespace"] is True
    (container,) = template["spec"]["containers"]
    assert container["command"] == ["tfps", "serve", "--drain-seconds=90"]


@pytest.mark.parametrize("name", ["jobset", "plain"])
def test_tasks_come_back(name: str) -> None:
    specs = {}
    for document in _documents(name, make_job(evaluator=True, max_restarts=4)):
        if document["kind"] == "JobSet":
            for each in document["spec"]["replicatedJobs"]:
                specs[each["name"]] = each["template"]["spec"]
        elif document["kind"] == "Job":
            kind, _ = next(_templates(document))
            specs[kind] = document["spec"]
    assert len(specs) == 4
    for kind, spec in specs.items():
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        rules = spec["podFailurePolicy"]["rules"]
        assert rules[0]["action"] == "Ignore"
        assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
        # Only the end of a JobSet ends an evaluator that always fails.
        if kind == "evaluator" and name == "jobset":
            assert spec["backoffLimitPerIndex"] > 10**9
        else:
            assert spec["backoffLimitPerIndex"] == 4
        # A worker that was drained ends with 143, which is no end of its Job.
        final = {
            code for rule in rules[1:] for code in rule["onExitCodes"]["values"]
        }
        assert chief_watch.EXIT_TERMINATED not in final
        assert (chief_watch.EXIT_NO_CHIEF in final) == (
            kind in ("worker", "ps")
        )


@pytest.mark.parametrize("evaluator", [False, True])
def test_a_jobset_ends_with_its_programs(evaluator: bool) -> None:
    document = _documents("jobset", make_job(evaluator=evaluator))[-1]
    targets = document["spec"]["successPolicy"]["targetReplicatedJobs"]
    assert targets == ["chief", "evaluator"][: 1 + evaluator]
    assert "failurePolicy" not in document["spec"]
    again = _documents("jobset", make_job(max_job_restarts=2))[-1]
    assert again["spec"]["failurePolicy"] == {"maxRestarts": 2}


@pytest.mark.parametrize("name", [*_KUBERNETES_FORMATS, "compose"])
def test_those_that_write_mount_the_checkpoints(name: str) -> None:
    job = _JOBS["large"]
    mounted = set()
    if name == "compose":
        (document,) = _documents(name, job)
        assert document["volumes"] == {"checkpoints": {}}
        for service, content in document["services"].items():
            for volume in content.get("volumes", ()):
                assert volume["target"] == "/checkpoints"
                mounted.add(service.partition("-")[0])
    else:
        for kind, template in _all_templates(name, job).items():
            (container,) = template["spec"]["containers"]
            for mount in container.get("volumeMounts", ()):
                assert mount["mountPath"] == "/checkpoints"
                (volume,) = template["spec"]["volumes"]
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == "checkpoints"
                mounted.add(kind)
    assert mounted == {"chief", "ps", "evaluator"}


@pytest.mark.parametrize("name", _KUBERNETES_FORMATS)
def test_resources_and_probes(name: str) -> None:
    for kind, template in _all_templates(name, make_job()).items():
        (container,) = template["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"]
        assert limits["memory"] == "4Gi"
        assert limits["cpu"] == "2"
        assert ("nvidia.com/gpu" in limits) == (kind == "worker")
        assert ("livenessProbe" in container) == (kind in ("worker", "ps"))


def _kubernetes_expands(text: str) -> str:
    """Returns what is left of a text without variables to replace."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", text), text
    return text.replace("$$", "$")


def test_arguments_arrive_as_they_are() -> None:
    job = _JOBS["large"]
    for name in ("jobset", "plain", "tfjob"):
        template = _all_templates(name, job)["chief"]
        (container,) = template["spec"]["containers"]
        command = [_kubernetes_expands(each) for each in container["command"]]
        assert tuple(command) == job.command("chief")
        value = _variables(template)["DATA"]["value"]
        assert _kubernetes_expands(value) == dict(job.environment)["DATA"]
    (document,) = _documents("compose", job)
    chief = document["services"]["chief"]
    command = [each.replace("$$", "$") for each in chief["command"]]
    assert tuple(command) == job.command("chief")
    for text in (*chief["command"], *chief["environment"].values()):
        assert "$" not in text.replace("$$", "")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("jobset", {"image": None}, "--image is missing"),
        ("compose", {"image": None}, "--image is missing"),
        ("compose", {"namespace": "ml"}, "--namespace ml"),
        ("compose", {"max_job_restarts": 1}, "--max-job-restarts 1"),
        ("tfjob", {"max_job_restarts": 1}, "--max-job-restarts 1"),
        ("slurm", {}, "--image registry.example.com/ranking:1"),
        ("slurm", {"image": None, "namespace": "a"}, "--namespace a"),
        ("slurm", {"image": None, "checkpoint_claim": "a"}, "--checkpoint-cl"),
        ("slurm", {"image": None, "workers": 5000}, "5003 tasks"),
        ("jobset", {"name": "a" * 50}, "--name is too long"),
        ("plain", {"name": "a" * 50}, "--name is too long"),
        ("tfjob", {"name": "a" * 60}, "--name is too long"),
    ],
)
def test_what_a_format_cannot_say_is_refused(
    name: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"--name|Received|Expected") as error:
        formats.text(name, make_job(**options))
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("name", "image", "option"),
    [("slurm", None, "partition=a"), ("jobset", "a", "--partition=a")],
)
def test_wrong_options_of_sbatch_are_refused(
    name: str, image: str | None, option: str
) -> None:
    with pytest.raises(ValueError, match="--sbatch"):
        formats.text(name, make_job(image=image), [option])


def test_without_pyyaml_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(formats.YamlMissingError, match=r"tfps_plugin\[deploy"):
        formats.text("jobset", make_job())
    formats.text("slurm", make_job(image=None))


def test_variables_of_a_slurm_script_are_its_own() -> None:
    script = formats.text("slurm", make_job(image=None))
    set_by_it = {
        *re.findall(r"^export (\w+)=", script, re.MULTILINE),
        *re.findall(r"\b(TFPS_\w+)=", script),
    }
    assert len(set_by_it) == 5
    for name in set_by_it:
        with pytest.raises(ValueError, match=f"sets {name}, which is set"):
            make_job(environment=((name, "1"),))


def test_the_ports_of_a_slurm_job_exist() -> None:
    # A chief, two parameter servers and three workers.
    last = make_job(image=None, port=65_530)
    assert "port=65530\n" in formats.text("slurm", last)
    with pytest.raises(ValueError, match="up to 65530 for 6 tasks"):
        formats.text("slurm", make_job(image=None, port=65_531))


def test_compose_replaces_nothing_in_a_path() -> None:
    job = make_job(checkpoint_claim="backups", checkpoint_path="/a$b")
    (document,) = _documents("compose", job)
    (volume,) = document["services"]["chief"]["volumes"]
    assert volume["target"] == "/a$$b"

"""The configuration: the three promised files load, faults are one clean line each, nothing secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import Config, load, loads, refuse_unsupported, require_train, unsupported
from headrace.document import ConfigError

CONFIGS = Path(__file__).parent / "configs"
SECRET = "hunter2-and-more"
CLASSES = "name: a\ntrain:\n  task: {type: classification, labels: [x, y]}\n"


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)


def faults(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, "x.yaml", overrides)
    assert raised.value.exit_code == 2
    return list(raised.value.faults)


# -- the promised files


def test_file_a_loads_with_what_follows_from_it() -> None:
    config = load(CONFIGS / "a.yaml").config
    assert (config.text.topic, config.tokens.topic) == ("workorders", "workorders.tokens")
    assert config.ingest.dead_letters.topic == "workorders.dead"
    assert config.tokenizer.path == "/models/ernie-3.0-base-zh"
    assert config.kafka["sasl.password"] == SECRET
    assert require_train(config).optimizer.learning_rate == 2e-5
    assert config.labels == ("交通", "环保", "教育", "医疗", "住房", "其他")


def test_file_b_loads() -> None:
    config = load(CONFIGS / "b.yaml").config
    assert (config.text.topic, config.tokens.topic) == ("finance.splits", "finance-mlm.tokens")
    assert config.labels == ()


def test_file_c_loads() -> None:
    config = load(CONFIGS / "c.yaml").config
    assert config.run == "seed-7"


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("a", ["train.precision"]),
        ("b", ["text.files", "train.precision"]),
        ("c", ["train.precision"]),
    ],
)
def test_what_is_not_available_yet_is_named_with_what_is(
    file: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = load(CONFIGS / f"{file}.yaml").config
    found = unsupported(config)
    assert [line.split(":")[0] for line in found] == keys
    assert all("use " in line or "name local files" in line for line in found)


def test_whole_word_masking_brings_a_dictionary() -> None:
    text = "name: a\ntrain: {model: {type: ernie}, task: {type: masked-lm, mask_unit: MASKED}}\n"
    assert loads(text.replace("MASKED", "word")).tokenizer.words == "jieba"
    assert loads(text.replace("MASKED", "token")).tokenizer.words == ""
    assert loads(text.replace("MASKED", "word") + "tokenizer: {words: my.txt}\n").tokenizer.words == "my.txt"


def test_other_unavailable_settings() -> None:
    assert unsupported(loads("name: a\ningest: {interleave: 4}\n"))[0].startswith("ingest.interleave: ")
    bounded = CLASSES + "  stop: {steps: 10}\n  optimizer: {warmup_share: 0.1}\n"
    assert unsupported(loads(bounded)) == []


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ("stop: never, optimizer: {schedule: cosine}", ["train.optimizer.schedule"]),
        ("stop: never, optimizer: {warmup_share: 0.1}", ["train.optimizer.warmup_share"]),
        ("stop: end, optimizer: {warmup_share: 0.1}", ["train.optimizer.warmup_share"]),
        ("stop: end, optimizer: {schedule: linear, warmup_tokens: 1000}", []),
        ("stop: {time: 2026-11-30T00:00+08:00}, optimizer: {schedule: cosine, warmup_share: 0.1}", []),
        ("stop: never, optimizer: {schedule: linear, warmup_share: 0.1, total_tokens: 1000}", []),
    ],
)
def test_a_schedule_needs_an_end_that_is_known(settings: str, refused: list[str]) -> None:
    text = f"name: a\ntrain: {{task: {{type: masked-lm}}, {settings}}}\n"
    assert [line.split(":")[0] for line in unsupported(loads(text))] == refused


def test_half_precision_needs_a_device_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = loads(CLASSES + "  precision: fp16\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert unsupported(config) == ["train.precision: fp16 needs a GPU, and there is none here: use fp32 or auto"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert unsupported(config) == []


def test_a_stage_refuses_only_what_is_its_own() -> None:
    config = loads(CLASSES + "  optimizer: {schedule: linear}\n")
    refuse_unsupported(config, {"ingest", "tokenizer", "text"})
    with pytest.raises(ConfigError, match=r"train\.optimizer\.schedule"):
        refuse_unsupported(config, {"train", "evaluate"})


def test_a_file_without_train_can_ingest_but_not_train() -> None:
    config = loads("name: a\n")
    assert unsupported(config) == []
    with pytest.raises(ConfigError, match="train is missing"):
        require_train(config)


# -- faults


def test_labels_that_yaml_reads_as_booleans_are_refused_with_the_cure() -> None:
    text = "name: a\ntrain:\n  task:\n    type: classification\n    labels: [是, no]\n"
    assert faults(text) == ['x.yaml:5: train.task.labels.1: YAML reads no as a boolean: put it in quotes: "no"']


def test_a_boolean_where_a_number_is_meant_is_refused() -> None:
    assert faults("name: a\ningest: {workers: yes}\n") == [
        "x.yaml:2: ingest.workers: YAML reads yes as a boolean: write a number"
    ]


@pytest.mark.parametrize(("word", "value"), [("no", False), ("on", True), ("false", False)])
def test_words_are_fine_where_a_boolean_is_meant(word: str, value: bool) -> None:
    assert loads(f"name: a\ntokenizer: {{lowercase: {word}}}\n").tokenizer.lowercase is value


def test_words_are_fine_in_free_sections() -> None:
    text = "name: a\nkafka: {enable.ssl.certificate.verification: no}\n"
    assert loads(text).kafka == {"enable.ssl.certificate.verification": False}


def test_an_unknown_key_names_the_nearest() -> None:
    assert faults("nmae: a\n") == ["x.yaml:1: nmae: unknown key: did you mean 'name'?"]
    assert faults(CLASSES + "  optimizer: {learning_rat: 1}\n") == [
        "x.yaml:4: train.optimizer.learning_rat: unknown key: did you mean 'learning_rate'?"
    ]


def test_a_key_in_the_wrong_section_is_sent_to_its_own() -> None:
    assert faults("name: a\nbatch: {tokens: 64}\n") == ["x.yaml:2: batch: unknown key: did you mean train.batch?"]
    assert (
        "it is there for type classification only"
        in faults("name: a\ntrain: {task: {type: masked-lm, labels: [a, b]}}\n")[0]
    )


def test_every_fault_is_told_at_once() -> None:
    found = faults(CLASSES + "  restarts: x\n  stop: {steps: 0}\ntokens: {lanes: 0}\n")
    assert [line.split(": ")[1] for line in found] == ["tokens.lanes", "train.stop.steps", "train.restarts"]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("  start: earlist\n", "x.yaml:4: train.start: 'earlist' is not possible: "),
        ("  stop: 3\n", "x.yaml:4: train.stop: 3 is not possible: `never`, `end`"),
        ("  stop: {stepz: 3}\n", "x.yaml:4: train.stop.stepz: unknown key: did you mean 'steps'?"),
        ("  stop: off\n", 'x.yaml:4: train.stop: YAML reads off as a boolean: put it in quotes: "off"'),
        ("  start: {time: 2026-11-23T00:00}\n", "x.yaml:4: train.start.time: needs an offset"),
        ("  model: 5\n", "x.yaml:4: train.model: 5 is not possible: Directory"),
        ("  optimizer:\n", "x.yaml:4: train.optimizer: is empty: give it a value or remove the line"),
        ("  seed: x\n", "x.yaml:4: train.seed: should be a whole number, not 'x'"),
        ("  run: a/b\n", "x.yaml:4: train.run: "),
    ],
)
def test_faults_inside_unions_are_one_line(lines: str, fault: str) -> None:
    (found,) = faults(CLASSES + lines)
    assert found.startswith(fault)


@pytest.mark.parametrize("task", ["{type: clasification}", "{}", "{type: 3}"])
def test_an_unknown_task_names_those_there_are(task: str) -> None:
    found = faults(f"name: a\ntrain:\n  task: {task}\n")
    kinds = "classification, masked-lm, causal-lm, package.module:Class"
    assert found == [f"x.yaml:3: train.task.type: should be one of {kinds}"]


def test_a_task_of_ones_own_is_a_path_with_options() -> None:
    text = "name: a\ntrain: {task: {type: %s, options: {scale: 2}}}\n"
    task = loads(text % "mine.tasks:Lengths").train.task  # type: ignore[union-attr]
    assert (task.type, task.options) == ("mine.tasks:Lengths", {"scale": 2})
    assert "write `package.module:Class`" in faults(text % "mine.tasks:2")[0]
    assert "should be one of" in faults(text % "mine.tasks.Lengths")[0]


def test_several_labels_a_text_are_checked_by_ingest_as_one_is() -> None:
    config = loads("name: a\ntrain: {task: {type: classification, labels: [x, y], multi_label: true}}\n")
    assert config.labels == ("x", "y")


def test_numbers_where_text_is_meant() -> None:
    found = faults("name: a\ntrain: {task: {type: classification, labels: [1, 2]}}\n")
    assert found[0] == ("x.yaml:2: train.task.labels.0: should be text, and YAML reads 1 as a number: put it in quotes")
    assert len(found) == 2


def test_a_wrong_choice_names_the_nearest() -> None:
    assert "did you mean json?" in faults("name: a\ntext: {format: jsn}\n")[0]


def test_an_override_at_fault_is_named_as_such() -> None:
    assert faults("name: a\n", "tokens.lanes=0") == ["--set: tokens.lanes: should be greater than or equal to 1, not 0"]


def test_options_that_exactly_once_rests_on_are_refused() -> None:
    assert "kafka.group.id is set by headrace" in faults("name: a\nkafka: {group.id: mine}\n")[0]


def test_a_missing_name_is_said() -> None:
    assert faults("") == ["x.yaml: name: is missing and has no default: add it"]


def test_an_empty_section_is_its_defaults() -> None:
    assert loads("name: a\ntext:\ntrain:\n") == loads("name: a\n")


# -- secrets


def test_secrets_are_never_shown() -> None:
    overrides = ["kafka.ssl.key.pem=abc-pem", "kafka.ssl.ca.location=/etc/ca"]
    shown = load(CONFIGS / "a.yaml", overrides).shown()
    assert SECRET not in shown and "abc-pem" not in shown
    assert "/etc/ca" in shown and "sasl.username: headrace" in shown
    assert shown.startswith("name: workorders")


def test_what_comes_from_outside_is_never_shown_even_where_it_was_copied(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(CLASSES + "  model: '${env:KAFKA_PASSWORD}'\n")
    loaded = load(file)
    assert loaded.config.tokenizer.path == SECRET
    assert SECRET not in loaded.shown()
    assert SECRET not in repr(loaded)


def test_a_secret_is_not_part_of_a_fault() -> None:
    (fault,) = faults("name: a\nbroker: '${env:KAFKA_PASSWORD}'\n")
    assert SECRET not in fault and "***" in fault


def test_a_fault_carries_no_input_of_pydantic(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loads("name: a\nkafka: {sasl.password: '${env:KAFKA_PASSWORD}'}\ntokens: 3\n")
    assert raised.value.__suppress_context__


# -- the model itself


def test_the_configuration_is_frozen() -> None:
    config = loads("name: a\n")
    with pytest.raises(ValueError, match="frozen"):
        config.name = "b"  # type: ignore[misc]


def test_what_is_shown_loads_again() -> None:
    loaded = load(CONFIGS / "c.yaml")
    assert loads(loaded.shown()) == loaded.config
    assert isinstance(loaded.config, Config)

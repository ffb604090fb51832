import pytest
from hypothesis import given
from hypothesis import strategies

from tfps_plugin.cluster.output import tensorflow_noise
from tfps_plugin.cluster.output.tensorflow_noise import LineNoiseFilter
from tfps_plugin.cluster.output.tensorflow_noise import NoiseFilter

_ONEDNN = (
    "I0000 00:00:1795208158.583775   27780 port.cc:153] oneDNN custom "
    "operations are on. You may see slightly different numerical results due "
    "to floating-point round-off errors from different computation orders. To "
    "turn them off, set the environment variable `TF_ENABLE_ONEDNN_OPTS=0`."
)
_NO_GPU = (
    "E0000 00:00:1795208164.131765   27782 cuda_platform.cc:52] failed call "
    "to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR "
    "(303)"
)
_NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are "
    "written to STDERR",
    _ONEDNN,
    "I0000 00:00:1795208158.584977   27780 cudart_stub.cc:31] Could not find "
    "cuda drivers on your machine, GPU will not be used.",
    "I0000 00:00:1795208158.696963   27780 cpu_feature_guard.cc:227] This "
    "TensorFlow binary is optimized to use available CPU instructions in "
    "performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F SSE4.1 FMA, in other "
    "operations, rebuild TensorFlow with the appropriate compiler flags.",
    _NO_GPU,
    # From TensorFlow 2.20 and earlier.
    "2025-03-10 15:55:25.484407: E external/local_xla/xla/stream_executor/cuda/"
    "cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register "
    "factory for plugin cuFFT when one has already been registered",
    "E0000 00:00:1741640125.496393    4606 cuda_dnn.cc:8310] Unable to "
    "register cuDNN factory: Attempting to register factory for plugin cuDNN "
    "when one has already been registered",
    "W0000 00:00:1741640125.516393    4606 computation_placer.cc:177] "
    "computation placer already registered. Please check linkage and avoid "
    "linking the same target more than once.",
    "2025-03-10 15:55:25.474408: E external/local_xla/xla/stream_executor/cuda/"
    "cuda_driver.cc:152] failed call to cuInit: UNKNOWN ERROR (303)",
    "I0000 00:00:1795210207.324993    9856 grpc_server_lib.cc:466] Started "
    "server with target: grpc://127.0.0.1:36423",
    "I0000 00:00:1795210209.642650   10177 eager_service_impl.cc:349] Creating "
    "sync eager service context with rendezvous_id on host vm "
    "/job:ps/replica:0/task:0",
)
_DUMP = (
    "I0000 00:00:1795210209.642768   10177 eager_service_impl.cc:355] "
    "SessionOptions: device_count {",
    '  key: "CPU"',
    "  value: 1",
    "}",
    "gpu_options {",
    "  experimental {",
    "  }",
    "}",
    "allow_soft_placement: true",
    "",
)
_SOMEBODYS = (
    "",
    "Epoch 1/2",
    "WARNING: All log messages are mine",
    "To enable the following instructions: read them",
    "UNKNOWN ERROR (303)",
    # Another error of the same file, and of the same call.
    _NO_GPU.replace("UNKNOWN ERROR (303)", "CUDA_ERROR_OUT_OF_MEMORY (2)"),
    "E0000 00:00:1795208164.131765   27782 cuda_platform.cc:52] oh",
    # A program's own log, as Abseil writes it once it is initialized.
    "I1120 21:04:37.231481   10699 train.py:10] Could not find cuda drivers "
    "on your machine, GPU will not be used.",
    "I0000 00:00:1795208158.583775   27780 my_reader.cc:153] opened",
    "W0000 00:00:1795208158.583775   27780 gpu_device.cc:2431] Cannot dlopen "
    "some GPU libraries.",
    # Noise with text before or after it.
    f"10% |# | 1/10{_ONEDNN}",
    f"{_ONEDNN} And I say",
    "2025-03-10 15:55:25,474 INFO oneDNN custom operations are on.",
)


@pytest.mark.parametrize("line", _NOISE)
def test_noise_is_known(line: str) -> None:
    assert tensorflow_noise.is_noise(line)


@pytest.mark.parametrize("line", _SOMEBODYS)
def test_what_somebody_says_is_no_noise(line: str) -> None:
    assert not tensorflow_noise.is_noise(line)


@pytest.mark.parametrize("line", _NOISE)
def test_noise_is_suspected_from_its_first_character(line: str) -> None:
    for end in range(len(line) + 1):
        assert tensorflow_noise.may_become_noise(line[:end])


@pytest.mark.parametrize(
    "beginning",
    ["\r 10%", "It", "I say", "50%|##", "> ", "Traceback", "2025: "],
)
def test_what_somebody_begins_is_not_suspected(beginning: str) -> None:
    assert not tensorflow_noise.may_become_noise(beginning)


@pytest.mark.parametrize(
    ("environ", "wants_everything", "level", "is_quiet"),
    [
        ({}, False, "2", True),
        ({"TF_CPP_MIN_LOG_LEVEL": ""}, False, "2", True),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, False, "3", True),
        ({"TF_CPP_MIN_LOG_LEVEL": "1"}, False, "1", False),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, False, "0", False),
        ({"TF_CPP_MIN_LOG_LEVEL": "no"}, False, "no", False),
        ({}, True, "0", False),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, True, "0", False),
    ],
)
def test_the_user_decides_what_is_shown(
    environ: dict[str, str], wants_everything: bool, level: str, is_quiet: bool
) -> None:
    chosen = tensorflow_noise.choose_log_level(
        environ, wants_everything=wants_everything
    )
    assert chosen == level
    assert tensorflow_noise.is_quiet(chosen) == is_quiet


@given(strategies.lists(strategies.sampled_from([*_NOISE, *_SOMEBODYS, "}"])))
def test_only_noise_is_taken_out_of_lines(lines: list[str]) -> None:
    shown = tensorflow_noise.LineNoiseFilter().feed(lines)
    assert shown == [line for line in lines if line not in _NOISE]


def test_a_dump_is_taken_out_up_to_its_end() -> None:
    noise_filter = tensorflow_noise.LineNoiseFilter()
    assert noise_filter.feed(_DUMP[:4]) == []
    assert noise_filter.feed([*_DUMP[4:], "", "}"]) == ["", "}"]


def test_a_dump_that_is_interrupted_takes_nothing_of_somebodys() -> None:
    noise_filter = tensorflow_noise.LineNoiseFilter()
    interrupted = [*_DUMP[:3], "my line", "}", ""]
    assert noise_filter.feed(interrupted) == ["my line", "}", ""]


def _filter(*chunks: bytes) -> bytes:
    noise_filter = NoiseFilter()
    shown = b"".join(noise_filter.feed(chunk) for chunk in chunks)
    return shown + noise_filter.release()


@given(
    strategies.lists(
        strategies.sampled_from([*_NOISE, *_SOMEBODYS, "\r 1%\r 2%", "\xe4"])
    ),
    strategies.integers(min_value=1, max_value=200),
)
def test_chunks_make_no_difference(lines: list[str], size: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    expected = "".join(f"{line}\n" for line in lines if line not in _NOISE)
    assert _filter(*chunks) == expected.encode()


@given(strategies.lists(strategies.binary(max_size=20)))
def test_other_bytes_come_through_as_they_are(chunks: list[bytes]) -> None:
    assert _filter(*chunks) == b"".join(chunks)


def test_what_is_no_noise_is_not_held_back() -> None:
    noise_filter = NoiseFilter()
    for written in (b"\r 10%", b"\r 20%", b"\n", b"Name? ", b"I", b"0000\n"):
        assert noise_filter.feed(written) == written
    assert not noise_filter.is_holding


def test_what_may_become_noise_is_held_back_until_its_line_ends() -> None:
    noise_filter = NoiseFilter()
    line = _ONEDNN.encode()
    assert noise_filter.feed(b"ready\n" + line[:7]) == b"ready\n"
    assert noise_filter.is_holding
    assert noise_filter.feed(line[7:]) == b""
    assert noise_filter.feed(b"\nso ") == b"so "
    assert not noise_filter.is_holding


def test_what_is_given_up_is_shown_with_the_rest_of_its_line() -> None:
    noise_filter = NoiseFilter()
    line = _ONEDNN.encode() + b"\n"
    noise_filter.feed(line[:2])
    assert noise_filter.release() == line[:2]
    assert noise_filter.release() == b""
    assert noise_filter.feed(line[2:] + line) == line[2:]


def test_an_endless_line_is_not_held_back() -> None:
    noise_filter = NoiseFilter()
    written = b"WARNING: All log messages before absl::" + b"x" * 2000
    assert noise_filter.feed(written) == written


_REMOVAL = (
    "E0000 00:00:1795208164.131765   27782 context.cc:898] Failed to remove "
    "function remotely due to failed to connect to all addresses",
    "Additional GRPC error information from remote target "
    "/job:worker/replica:0/task:1 while calling "
    "/tensorflow.eager.EagerService/Enqueue:",
    ':{"created":"@1706768244.511244031","description":"Failed"}',
    "This could happen if the remote target has been disconnected from the "
    "client.",
)


def test_a_function_of_a_dead_task_is_no_news_to_the_last_line() -> None:
    registering = _REMOVAL[0].replace("remove", "register")
    lines = [*_REMOVAL, "mine", registering, *_REMOVAL[1:]]
    shown = lines[len(_REMOVAL) :]
    assert LineNoiseFilter().feed(lines) == shown
    data = "".join(f"{line}\n" for line in lines).encode()
    # The same bytes as a terminal receives them.
    assert NoiseFilter().feed(data).decode().splitlines() == shown


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_noise_after_a_line_that_was_cleared_is_taken_out(size: int) -> None:
    data = f"\r\x1b[K1 of 3\r\x1b[K{_NOISE[0]}\nmine\n".encode()
    noise_filter = NoiseFilter()
    shown = b"".join(
        noise_filter.feed(data[start : start + size])
        for start in range(0, len(data), size)
    )
    shown += noise_filter.release()
    if size > 1:
        assert shown == b"\r\x1b[K1 of 3\r\x1b[Kmine\n"
    # Byte by byte, the filter cannot know: it shows too much, never too little.
    assert shown.endswith(b"mine\n")


def test_what_checks_numbers_says_on_each_task_is_taken_out() -> None:
    message = [
        "E0000 00:00:1795673709.839777   26411 grpc_util.h:104] Truncated "
        "error message: INVALID_ARGUMENT: {{function_node __inference_1}} ",
        "",
        '!!! Detected Infinity or NaN in output 0 of graph op "Log" (# of '
        "outputs: 1) !!!",
        "  dtype: <dtype: 'float32'>",
        "  shape: (32, 3)",
        "",
        '  Input tensor: Tensor("sub:0", shape=(32, 3), dtype=float32)',
        '  Graph name: "one_step"',
        "",
        '  Stack trace of op\'s creation ("->": inferred user code):',
        "    + ... (Omitted 15 frames)",
        "    + /home/me/train.py (L29) train_step",
        " -> |   x = tf.math.log(x)",
        "    + ...tensorflow/python/framework/ops.py (L1221) from_node_def",
        "    |   ",
        "",
        " : Tensor had NaN values",
        "\t [[{{node Log/CheckNumericsV2}}]]",
        "Additional GRPC error information from remote target /job:ps:",
        ':UNKNOWN:Error received from peer  {grpc_message:""}',
    ]
    lines = [*message, *message, "mine", *message[1:3]]
    assert LineNoiseFilter().feed(lines) == lines[2 * len(message) :]
    # On several tasks.
    beginning = message[0].partition("{{")[0]
    lines = [
        f"{beginning}2 root error(s) found.",
        "  (0) INVALID_ARGUMENT: {{function_node __inference_1}} ",
        *message[1:-2],
        "  (1) INVALID_ARGUMENT: {{function_node __inference_1}} ",
        *message[1:10],
        "    + ...tensorflow/pyth ... [truncated]",
        *message[-2:],
        "mine",
    ]
    assert LineNoiseFilter().feed(lines) == ["mine"]
    another = [message[0].replace("{{", "no room {{"), *message[1:]]
    assert LineNoiseFilter().feed(another) == another

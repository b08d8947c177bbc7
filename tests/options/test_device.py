"""The options of a device's sessions."""

from genai_server.options.device import DeviceOptions, without_spinning_between_passes


def test_threads_stop_spinning_unless_the_operator_wants_it() -> None:
    stop = "session.force_spinning_stop"
    assert without_spinning_between_passes(DeviceOptions(entries={"a": "b"})).entries == {"a": "b", stop: "1"}
    assert without_spinning_between_passes(DeviceOptions(entries={stop: "0"})).entries == {stop: "0"}

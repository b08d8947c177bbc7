"""The names by which requests choose one of the models of a deployment, and the model for those that name none."""

from collections.abc import Mapping
from dataclasses import dataclass

from genai_server.config import Settings
from genai_server.errors import ModelNotFound
from genai_server.generation.catalog import plain_name, task_unsupported
from genai_server.messages.status_file import ANY_NAME
from genai_server.pooling_model import Task
from genai_server.quoted_values import quoted


@dataclass(frozen=True)
class ModelNames:
    """The names of the models, as `Catalog.choose_for` takes them."""

    settings: Settings
    # What each model is for.
    tasks: Mapping[str, Task]

    def choose(self, id: object, task: Task | None = None) -> str:
        """The model of an id; without an id, or with one that is no text, the first one for the task, or of all.

        Raises ModelNotFound, and TaskUnsupported for a model of another task. A single model's replicas check both.
        """
        served = list(self.settings.served)
        able = [name for name in served if task in (None, self.tasks[name])]
        if len(served) == 1 or not isinstance(id, str):
            return (able or served)[0]
        model = self._named(id)
        if model not in able:
            assert task is not None
            raise task_unsupported(model, task, able)
        return model

    def _named(self, id: str) -> str:
        served, aliases = self.settings.served, self.settings.aliases
        plain = plain_name(id)
        for name in (id, plain, id.rpartition(":")[0], plain.rpartition(":")[0], ANY_NAME):
            if name in served or name in aliases:
                return aliases.get(name, name)
        names = ", ".join(map(quoted, served))
        raise ModelNotFound(f"model {quoted(id)} is not served; {names} are", param="model")

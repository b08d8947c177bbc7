"""LangChain's parser of recordings, which sends them as MP3."""

from imageio_ffmpeg import get_ffmpeg_exe
from langchain_core.documents.base import Blob
from pydub import AudioSegment

from _clients.programs.checks import RECORDING, TRANSCRIPT, check, equal, recipe, run

AudioSegment.converter = get_ffmpeg_exe()
parser = recipe()["parser"]


@check("OpenAIWhisperParser")
def _parser() -> None:
    equal([document.page_content for document in parser.lazy_parse(Blob.from_path(RECORDING))], [TRANSCRIPT])


run()

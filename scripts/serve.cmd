@echo off
rem Installs what is missing and serves; further arguments go to the server: scripts\serve.cmd --port 9000
rem GENAI_EXTRA chooses what is installed (cpu, cuda, directml, winml). Relative paths are relative to the repository.
setlocal
cd /d "%~dp0\.."
if "%GENAI_EXTRA%"=="" if exist .venv\device set /p GENAI_EXTRA=<.venv\device
if "%GENAI_EXTRA%"=="" set GENAI_EXTRA=cpu
rem The packages for different devices contain the same module: changing over takes a new environment.
set HAVE=
if exist .venv\device set /p HAVE=<.venv\device
if exist .venv if not "%HAVE%"=="%GENAI_EXTRA%" rmdir /s /q .venv
if not exist .venv (
    echo making the virtual environment .venv, which takes some seconds ... 1>&2
    py -3 -c "import sys; sys.exit(sys.version_info < (3, 11))" || (echo genai-server needs Python 3.11 or newer 1>&2 & exit /b 2)
    py -3 -m venv .venv || exit /b 2
    >.venv\device echo %GENAI_EXTRA%
)
if not exist .venv\installed (
    echo installing this copy of genai-server with %GENAI_EXTRA% ... 1>&2
    .venv\Scripts\python -m pip install --disable-pip-version-check --editable ".[%GENAI_EXTRA%,audio]" || exit /b 2
    .venv\Scripts\python -m pip install --disable-pip-version-check .\native || echo not installed: genai-server-native. ONNX Runtime's own operators run models on CPUs 1>&2
    type nul >.venv\installed
    echo installed; .venv\Scripts\activate puts genai-server on the PATH of a terminal 1>&2
)
.venv\Scripts\python -m genai_server serve %*

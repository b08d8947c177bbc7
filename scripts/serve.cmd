@echo off
rem Installs what is missing and serves; further arguments go to the server: scripts\serve.cmd --port 9000
rem GENAI_EXTRA chooses the extra (cpu, cuda, directml). Relative paths are relative to the repository.
setlocal
cd /d "%~dp0\.."
if "%GENAI_EXTRA%"=="" set GENAI_EXTRA=cpu
if not exist .venv\Scripts\python.exe py -3 -m venv .venv || exit /b 2
if not exist .venv\installed-%GENAI_EXTRA% (
    .venv\Scripts\python -m pip install --quiet --disable-pip-version-check --editable ".[%GENAI_EXTRA%]" || exit /b 2
    type nul > .venv\installed-%GENAI_EXTRA%
)
.venv\Scripts\python -m genai_server serve %*

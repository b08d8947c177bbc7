@echo off
rem Installs what is missing and serves; further arguments go to the server: scripts\serve.cmd --port 9000
rem GENAI_EXTRA chooses what is installed (cpu, cuda, winml, directml). Relative paths are relative to the repository.
setlocal
cd /d "%~dp0\.."
call scripts\install.cmd audio || exit /b 2
.venv\Scripts\python -m genai_server serve %*

@echo off
rem Makes the virtual environment .venv if need be and installs the package into it.
rem usage: scripts\install.cmd [EXTRA]...     such as bench, otel or export (pyproject.toml has them all), beside the
rem extra of the device, which GENAI_EXTRA names: cpu, cuda, winml or directml.
rem Nothing is done when all is there and pyproject.toml is older, so that a second start is quick.
setlocal
cd /d "%~dp0\.."
if "%GENAI_EXTRA%"=="" if exist .venv\device set /p GENAI_EXTRA=<.venv\device
if "%GENAI_EXTRA%"=="" set GENAI_EXTRA=cpu
set PYTHON=py -3
if exist .venv\Scripts\python.exe set PYTHON=.venv\Scripts\python
%PYTHON% -c "import sys; sys.exit(sys.version_info < (3, 11))" || (echo genai-server needs Python 3.11 or newer 1>&2 & exit /b 2)
%PYTHON% scripts\_install\extras.py %GENAI_EXTRA% %* || exit /b 2
rem The packages for different devices contain the same module: changing over takes a new environment.
set HAVE=
if exist .venv\device set /p HAVE=<.venv\device
if exist .venv if not "%HAVE%"=="%GENAI_EXTRA%" rmdir /s /q .venv
if not exist .venv (
    echo making the virtual environment .venv, which takes some seconds ... 1>&2
    py -3 -m venv .venv || exit /b 2
    >.venv\device echo %GENAI_EXTRA%
)
.venv\Scripts\python scripts\_install\extras.py --missing %GENAI_EXTRA% %* && exit /b 0
set ASKED=%GENAI_EXTRA%
for %%E in (%*) do call set "ASKED=%%ASKED%%,%%E"
echo installing this copy of genai-server with %ASKED% ... 1>&2
.venv\Scripts\python -m pip install --disable-pip-version-check --editable ".[%ASKED%]" || exit /b 2
.venv\Scripts\python -m pip install --disable-pip-version-check .\native || echo not installed: genai-server-native. On CPUs requests run one by one 1>&2
>.venv\installed echo done
for %%E in (%*) do >".venv\installed-%%E" echo done
echo installed; .venv\Scripts\activate puts genai-server on the PATH of a terminal 1>&2
exit /b 0

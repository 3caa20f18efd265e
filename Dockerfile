# The workbook without a GPU: docker build -t mrv2lab . && docker run --rm -p 127.0.0.1:8888:8888 mrv2lab
# The stage `tools` alone is what .devcontainer builds: there the folder that is open gets the .venv.
FROM python:3.12-slim AS tools
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*

FROM tools
WORKDIR /mrv2lab
COPY . .
RUN PIP_NO_CACHE_DIR=1 make setup STACK=cpu
EXPOSE 8888
CMD ["make", "lab", "STACK=cpu", "LAB_FLAGS=--ip=0.0.0.0 --no-browser"]

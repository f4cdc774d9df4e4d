# docker build -t tasklab . && mkdir -m 777 site && docker run --rm -v "$PWD/site:/site" tasklab
# builds the site as `make report` does and copies it to /site; `docker run --rm tasklab make test` runs the tests.
# Everything runs as the user `tasklab` (1000), who must be able to write to the folder of the site.
FROM python:3.11.9-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends make git chromium libatomic1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tasklab \
    && mkdir /tasklab /site \
    && chown tasklab:tasklab /tasklab /site
USER tasklab
WORKDIR /tasklab
COPY --chown=tasklab:tasklab . .
# Packages are copied into the environment: with a cache beside it the image would be larger for nothing.
RUN UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1 make env
CMD ["sh", "-c", "make report && cp -r book/_build/html/. /site/"]

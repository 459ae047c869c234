# The recipe on one CPU machine, for x86-64. Built and run from the checkout:
#   docker build -f docker/cpu.Dockerfile -t oger:cpu .
#   docker run --rm --shm-size 2g oger:cpu train --recipe configs/countdown_cpu_smoke.yaml
FROM python:3.11-slim-bookworm

# What scripts/setup.sh asks for, and the compiler that torch uses in a run.
# hadolint ignore=DL3008 # Debian keeps no older versions
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home oger \
    && install --directory --owner oger --group oger /home/oger/recipe

USER 1000:1000
WORKDIR /home/oger/recipe
COPY --chown=oger:oger . .
RUN --mount=type=cache,target=/home/oger/.cache/pip,uid=1000,gid=1000 \
    bash scripts/setup.sh --cpu

ENV PATH="/home/oger/recipe/.venv/bin:$PATH"
ENTRYPOINT ["oger"]

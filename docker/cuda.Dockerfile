# The recipe for NVIDIA GPUs, for x86-64. It was never built. Built and run from the checkout:
#   docker build -f docker/cuda.Dockerfile -t oger:cuda .
#   docker run --rm --gpus all --ipc host -v "$PWD/runs:/home/oger/recipe/runs" oger:cuda train --recipe configs/oger.yaml
# flash-attn is compiled, anew after every change of the sources. A wheel of it saves that:
#   docker build --build-arg FLASH_ATTN_WHEEL=https://... or, on a machine with many cores, --build-arg MAX_JOBS=16
# The toolkit stays in the image: DeepSpeed and Triton compile with it at the start of a run.
FROM nvidia/cuda:13.0.1-devel-rockylinux9

# What scripts/setup.sh asks for.
# hadolint ignore=DL3041 # Rocky keeps no older versions
RUN dnf install --assumeyes gcc-c++ numactl-libs python3.11 python3.11-devel \
    && dnf clean all \
    && useradd --uid 1000 --create-home oger \
    && install --directory --owner oger --group oger /home/oger/recipe

USER 1000:1000
WORKDIR /home/oger/recipe
COPY --chown=oger:oger . .
ARG FLASH_ATTN_WHEEL=""
ARG MAX_JOBS=""
RUN --mount=type=cache,target=/home/oger/.cache/pip,uid=1000,gid=1000 \
    bash scripts/setup.sh --gpu

ENV PATH="/home/oger/recipe/.venv/bin:$PATH"
ENTRYPOINT ["oger"]

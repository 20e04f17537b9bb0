# Images for users with a registry; `cargo xtask image` makes the same without a container engine.
#   docker build --build-arg PROGRAM=broker   -t REGISTRY/diskless-broker:TAG .
#   docker build --build-arg PROGRAM=operator -t REGISTRY/diskless-operator:TAG .
# BASE needs glibc, libgcc and CA certificates, of a release not older than that of RUST.
ARG RUST=rust:1.95-bookworm
ARG BASE=debian:12-slim

FROM ${RUST} AS build
ARG PROGRAM=broker
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked -p ${PROGRAM} && \
    mkdir -p /out/usr/local/bin /out/var/lib/diskless && \
    cp target/release/diskless-${PROGRAM} /out/usr/local/bin/ && \
    ln -s diskless-${PROGRAM} /out/usr/local/bin/diskless

FROM ${BASE}
COPY --from=build --chown=65532:65532 /out/var/lib/diskless /var/lib/diskless
COPY --from=build /out/usr/local/bin /usr/local/bin
USER 65532:65532
# An ENTRYPOINT takes no build argument: the link has the program's name.
ENTRYPOINT ["/usr/local/bin/diskless"]

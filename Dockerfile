# The image of every role. BINARIES=build compiles them here; BINARIES=prebuilt takes them, with their libraries
# and what they are made of, from the folder prebuilt/ of the build context (made by e2e/collect-libraries and e2e/sbom).
ARG BINARIES=build

FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package kvasir --package kvasir-operator \
    && e2e/collect-libraries /prebuilt target/release/kvasir target/release/kvasir-operator \
    && e2e/sbom /prebuilt/usr/share/sbom \
    && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /prebuilt/etc/ssl/certs/ca-certificates.crt

FROM scratch AS prebuilt
COPY prebuilt/ /prebuilt/

FROM ${BINARIES} AS binaries

FROM scratch
LABEL org.opencontainers.image.title="kvasir" \
      org.opencontainers.image.description="Serves large language models: engine, gateway, operator and command line" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binaries /prebuilt/ /
# Not root, and not a user that any host knows.
USER 65532:65532
ENV KVASIR_CACHE=/models
EXPOSE 8000
ENTRYPOINT ["/usr/bin/kvasir"]
CMD ["serve"]

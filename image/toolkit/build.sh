#!/bin/sh
# Builds NVIDIA's container toolkit for the image: what the node agent uses where a host has none that works.
#   sh image/toolkit/build.sh FOLDER       with GOARCH and CC set, for another machine
#
# nvidia-ctk runs in the image and opens the driver's library. What containers' hooks run is copied to the host, and
# needs nothing there: nvidia-cdi-hook without shared libraries, and Debian's ldconfig, which has none anyway.
set -eu
target=$1
cd "$(dirname "$0")"
module=github.com/NVIDIA/nvidia-container-toolkit
version=$(go list -mod=readonly -m -f '{{.Version}}' $module)
export CGO_ENABLED=1 GOFLAGS=-mod=readonly GOTOOLCHAIN=local
flags="-s -w -X $module/internal/info.version=${version#v}"
mkdir -p "$target"
# A driver may lack functions that a newer one has: they are looked for when they are called.
go build -trimpath -buildvcs=false -ldflags="$flags -extldflags=-Wl,-z,lazy" -o "$target/" $module/cmd/nvidia-ctk
go build -trimpath -buildvcs=false -tags=netgo,osusergo -ldflags="$flags -linkmode=external -extldflags=-static" \
    -o "$target/" $module/cmd/nvidia-cdi-hook
cp "${LDCONFIG:-/sbin/ldconfig}" "$target/ldconfig"
# Their licences want to go where they go.
go list -deps -f '{{with .Module}}{{.Path}} {{.Dir}}{{end}}' $module/cmd/nvidia-ctk $module/cmd/nvidia-cdi-hook |
    sort -u | while read -r path folder; do
        case $folder in "$PWD" | "") continue ;; esac
        mkdir -p "$target/licenses/$path"
        find "$folder" -maxdepth 1 \( -name 'LICEN[CS]E*' -o -name 'NOTICE*' \) -exec cp {} "$target/licenses/$path/" \;
    done

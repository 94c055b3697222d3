#!/bin/sh
# Installs Bywire below /usr/local, or below --prefix DIR. --destination ROOT puts all of it below another root directory.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case " $* " in *' --help '*|*' -h '*)
    echo 'usage: install.sh [--prefix DIR] [--destination ROOT]'
    exit ;;
esac
(cd "$here" && sha256sum --quiet -c SHA256SUMS)
"$here/bywire-install" --unstripped "$@" --libraries "$here"
exec "$here/bywire-install" --unstripped "$@" --command "$here/bywire"

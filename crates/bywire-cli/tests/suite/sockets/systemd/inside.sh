# Runs in the booted machine: installs Bywire, applies the recipes of docs/sockets.md as `systemctl edit` does, restarts
# each service, uses it by a carried client, and prints a line for each: its name, its state, the connections that were
# carried for it, and what the doctor said.
set -eu
here=/run/test
cd "$here"
mkdir -p /usr/local/bin /usr/local/lib/bywire /usr/local/lib/systemd/system
cp bywire /usr/local/bin/
cp libbywire_sockets.so /usr/local/lib/bywire/
cp bywire-pairing.socket bywire-pairing.service /usr/local/lib/systemd/system/
# Its tests are of the fabric, and no password is at stake.
sed -i 's/scram-sha-256/trust/' /etc/postgresql/15/main/pg_hba.conf
systemctl daemon-reload
systemctl enable --now bywire-pairing.socket

carried() { bywire status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["carried_ever"])'; }
doctor() {
    bywire doctor --json | python3 -c 'import json, sys
print(*(f["found"] for f in json.load(sys.stdin)["findings"] if f["name"] == "carried services"))'
}

redis_client() { bywire run -- redis-benchmark -q -c 5 -n 2000 -t get; }
nginx_client() {
    bywire run -- python3 -c 'import http.client, time
connection = http.client.HTTPConnection("127.0.0.1", 80)
for _ in range(60):
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read()
    time.sleep(0.01)'
}
postgresql_client() {
    echo 'SELECT 1;' >/tmp/select
    bywire run -- /usr/lib/postgresql/15/bin/pgbench -n -f /tmp/select -c 2 -t 500 -h 127.0.0.1 -U postgres postgres
}

apply() {
    mkdir -p "/etc/systemd/system/$1.service.d"
    cp "$2.recipe" "/etc/systemd/system/$1.service.d/override.conf"
    systemctl daemon-reload
    systemctl restart "$1"
}

use() {
    before=$(carried)
    "$2_client" >/dev/null
    printf '%s %s %s %s\n' "$1" "$(systemctl is-active "$1")" "$(($(carried) - before))" "$(doctor)"
    systemctl stop "$1"
}

for pair in redis-server:redis nginx:nginx postgresql@15-main:postgresql; do
    apply "${pair%%:*}" "${pair#*:}"
    use "${pair%%:*}" "${pair#*:}"
done

# A recipe that does not work shows itself: the server of pg_ctlcluster has no library.
cat >postgresql.recipe <<'END'
[Service]
ExecStart=
ExecStart=/usr/local/bin/bywire run -- /usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start
END
apply postgresql@15-main postgresql
use postgresql@15-main postgresql

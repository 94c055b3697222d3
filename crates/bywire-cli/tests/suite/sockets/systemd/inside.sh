# Runs in the booted machine: adds services by the commands of docs/sockets.md, uses each by a carried client, removes them,
# and adds units that cannot work. Each line of its output begins with a word that the test looks for.
cd /run/test
. ./setup
for name in refuses silent slow ends killed filtered strict dynamic rooted private 'odd\x2dname:1'; do
    cp "$name.service" /etc/systemd/system/
done
ln -s /dev/null /etc/systemd/system/hidden.service
systemctl daemon-reload
systemctl start redis-server nginx postgresql@15-main

doctor() {
    bywire doctor --json | python3 -c 'import json, sys
print(*(f["found"] for f in json.load(sys.stdin)["findings"] if f["name"] == "carried services"))'
}

postgresql_client() { pgbench_client 5432; }

# Uses a service by its client, and prints its state and how many connections were carried meanwhile.
use() {
    before=$(carried)
    "$2_client" >client 2>&1 || { echo "failed $1"; sed 's/^/  /' client; }
    echo "used $1 $(systemctl is-active "$1") $(($(carried) - before))"
}

sed '/^bywire service check/,$d' commands >first
sed -n '/^bywire service check/,$p' commands >rest
run first
for next in reload restart none; do
    for pair in redis-server:redis nginx:nginx postgresql@15-main:postgresql; do
        use "${pair%%:*}" "${pair#*:}"
    done
    echo "doctor $(doctor)"
    case $next in
    # Redis cannot reload.
    reload) systemctl reload nginx postgresql@15-main || echo "failed reload" ;;
    restart) systemctl restart redis-server nginx postgresql@15-main ;;
    esac
done
run rest
time_of page
use redis-server redis
state redis-server
[ ! -e /run/bywire-redis-server ] || echo "left /run/bywire-redis-server"

# The unit's own command line is changed.
cat >/etc/systemd/system/nginx.service.d/override.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/sbin/nginx -g 'daemon on; master_process on; worker_priority 1;'
END
systemctl daemon-reload
cat >changed <<'END'
bywire service check nginx
bywire service add nginx.service --restart
bywire service check nginx.service
HOME=/root sh x uninstall
END
mkdir -p /usr/local/lib/bywire && echo bin/bywire >/usr/local/lib/bywire/installed
run changed
use nginx nginx

# Sandboxes that need exceptions, and a name that is part of a path.
mkdir -p /srv/root && mount --bind / /srv/root
systemctl start strict dynamic rooted 'odd\x2dname:1.service'
cat >sandboxed <<'END'
bywire service add strict --restart
bywire service add dynamic --restart
bywire service add rooted --restart
bywire service add private
bywire service add 'odd\x2dname:1' --restart
END
run_at_once sandboxed
strict_client() { bywire run -- redis-benchmark -q -p 6401 -c 2 -n 1000 -t get; }
dynamic_client() { bywire run -- redis-benchmark -q -p 6402 -c 2 -n 1000 -t get; }
rooted_client() { bywire run -- redis-benchmark -q -p 6403 -c 2 -n 1000 -t get; }
for unit in strict dynamic rooted; do use "$unit" "$unit"; done
# One command for a unit at a time.
mkdir -m 700 /run/bywire.changes
cat >one_at_a_time <<'END'
flock /run/bywire.changes/strict.service bywire service remove strict
END
run one_at_a_time
cat >sandboxed <<'END'
bywire service remove strict --restart
bywire service remove dynamic --restart
bywire service remove 'odd\x2dname:1' --restart
END
run_at_once sandboxed
for unit in strict dynamic 'odd\x2dname:1'; do state "$unit"; done
time_of sandboxed

cat >more <<'END'
bywire service remove postgresql@15-main --restart
bywire service remove nginx --restart
bywire service add hidden
bywire service add no-such-service
bywire service add redis
bywire service remove redis --restart
bywire service add postgresql
bywire service add postgresql@
bywire service add redis-server.socket
setpriv --reuid 65534 --regid 65534 --clear-groups bywire service add nginx
systemctl start filtered
cat filtered.errors
mount -t tmpfs -o noexec tmpfs /mnt
cp libbywire_sockets.so /mnt
bywire run --library /mnt/libbywire_sockets.so -- true
END
run more
time_of more

# Units that cannot work, a directory that is somebody else's, and a killed command.
systemctl start refuses silent slow ends killed
mkdir /etc/systemd/system/owned.service.d
sed 's/^PrivateNetwork=.*//' private.service >/etc/systemd/system/owned.service
chown nobody /etc/systemd/system/owned.service.d
systemctl daemon-reload
cat >impossible <<'END'
bywire service add refuses --restart
bywire service add silent --restart
bywire service add ends --restart
timeout --preserve-status --signal INT 4 bywire service add slow --restart
timeout --signal KILL 4 bywire service add killed --restart
bywire service add owned --restart
END
run_at_once impossible
time_of impossible
cat >killed <<'END'
bywire service check killed
bywire service remove killed --restart
END
run killed
for unit in nginx redis-server refuses silent ends slow killed; do state "$unit"; done

# A launcher that clears the environment, wrapped by hand: the doctor names it, and nothing is written over it.
mkdir -p /etc/systemd/system/postgresql@15-main.service.d
cat >/etc/systemd/system/postgresql@15-main.service.d/override.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/local/bin/bywire run -- /usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start
END
systemctl daemon-reload
systemctl restart postgresql@15-main
echo "doctor $(doctor)"
echo 'bywire service add postgresql@15-main --restart' >last
run last
use postgresql@15-main postgresql
time_of end
ls -d /run/bywire.* 2>/dev/null | sed 's/^/left /'

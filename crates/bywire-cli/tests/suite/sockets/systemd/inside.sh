# Runs in the booted machine: adds services by the commands of docs/sockets.md, uses each by a carried client, removes them,
# and adds units that cannot work. Each line of its output begins with a word that the test looks for.
cd /run/test
. ./common
for name in refuses silent slow filtered strict dynamic rooted private; do cp "$name.service" /etc/systemd/system/; done
ln -s /dev/null /etc/systemd/system/hidden.service
systemctl daemon-reload
systemctl start redis-server nginx postgresql@15-main

doctor() {
    bywire doctor --json | python3 -c 'import json, sys
print(*(f["found"] for f in json.load(sys.stdin)["findings"] if f["name"] == "carried services"))'
}

redis_client() { bywire run -- redis-benchmark -q -c 5 -n 2000 -t get; }
nginx_client() { client http 80; }
postgresql_client() { pgbench_client 5432; }

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

# Sandboxes that need exceptions.
mkdir -p /srv/root && mount --bind / /srv/root
systemctl start strict dynamic rooted
cat >sandboxed <<'END'
bywire service add strict --restart
bywire service add dynamic --restart
bywire service add rooted --restart
bywire service add private
END
run sandboxed
strict_client() { bywire run -- redis-benchmark -q -p 6401 -c 2 -n 1000 -t get; }
dynamic_client() { bywire run -- redis-benchmark -q -p 6402 -c 2 -n 1000 -t get; }
rooted_client() { bywire run -- redis-benchmark -q -p 6403 -c 2 -n 1000 -t get; }
for unit in strict dynamic rooted; do use "$unit" "$unit"; done

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
systemctl start refuses silent slow
bywire service add refuses --restart
bywire service add silent --restart
timeout --preserve-status --signal INT 4 bywire service add slow --restart
systemctl start filtered
cat filtered.errors
mount -t tmpfs -o noexec tmpfs /mnt
cp libbywire_sockets.so /mnt
bywire run --library /mnt/libbywire_sockets.so -- true
END
run more
for unit in nginx redis-server refuses silent slow; do state "$unit"; done

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

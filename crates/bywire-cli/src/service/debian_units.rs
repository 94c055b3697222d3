//! The settings of services that Debian 12 ships, as far as `bywire service add` reads them, and what each gets.

use super::cluster::Cluster;
use super::drop_in::Unit;
use super::unit_file::UnitFile;

const PLAIN_RUN: &str = "ExecStart=";

/// The unit's name, its settings, and the lines of its drop-in before the two that every unit gets.
pub const UNITS: [(&str, &str, &[&str]); 10] = [
    (
        "redis-server.service",
        "Type=notify
ExecStart=/usr/bin/redis-server /etc/redis/redis.conf --supervised systemd --daemonize no
User=redis
RuntimeDirectory=redis
RuntimeDirectoryMode=2755
UMask=007
PrivateTmp=true
ProtectHome=true
ProtectSystem=strict
ReadWritePaths=-/var/lib/redis
MemoryDenyWriteExecute=true
NoNewPrivileges=true
PrivateUsers=true
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~ @privileged @resources
NoExecPaths=/
ExecPaths=/usr/bin/redis-server /usr/lib /lib",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/bin/redis-server /etc/redis/redis.conf --supervised systemd \
             --daemonize no",
            "ExecPaths=/usr/local/bin/bywire /usr/local/lib/bywire",
            "Environment=RUNTIME_DIRECTORY=/run/redis",
        ],
    ),
    (
        "nginx.service",
        "Type=forking
PIDFile=/run/nginx.pid
ExecStartPre=/usr/sbin/nginx -t -q -g 'daemon on; master_process on;'
ExecStart=/usr/sbin/nginx -g 'daemon on; master_process on;'
ExecReload=/usr/sbin/nginx -g 'daemon on; master_process on;' -s reload
KillMode=mixed",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/sbin/nginx -g 'daemon on; master_process on; env LD_PRELOAD; env \
             BYWIRE_SOCKETS_SERVICE; env BYWIRE_SOCKETS_CORES; env BYWIRE_SOCKETS_CALLS; env BYWIRE_SOCKETS_SPIN; env \
             BYWIRE_SOCKETS_IO_URING; env BYWIRE_SOCKETS_FILTERS; env BYWIRE_LOG;'",
        ],
    ),
    (
        "postgresql@15-main.service",
        "Type=forking
ExecStart=-/usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start
TimeoutStartSec=0
ExecStop=/usr/bin/pg_ctlcluster --skip-systemctl-redirect -m fast %i stop
ExecReload=/usr/bin/pg_ctlcluster --skip-systemctl-redirect %i reload
PIDFile=/run/postgresql/%i.pid
OOMScoreAdjust=-900",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /bin/sh -c 'exec \"$$0\" \"$$@\" \
             >>/var/log/postgresql/postgresql-15-main.log 2>&1' /usr/lib/postgresql/15/bin/postgres -D \
             /var/lib/postgresql/15/main -c config_file=/etc/postgresql/15/main/postgresql.conf",
            "Type=notify",
            "User=postgres",
            "ExecReload=",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "ExecStop=",
            "KillMode=mixed",
            "KillSignal=SIGINT",
            "Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj LANG=C.UTF-8",
            "EnvironmentFile=-/etc/postgresql/15/main/environment",
        ],
    ),
    (
        "apache2.service",
        "Type=forking
Environment=APACHE_STARTED_BY_SYSTEMD=true
ExecStart=/usr/sbin/apachectl start
ExecStop=/usr/sbin/apachectl graceful-stop
ExecReload=/usr/sbin/apachectl graceful
KillMode=mixed
PrivateTmp=true",
        &[PLAIN_RUN, "ExecStart=/usr/local/bin/bywire run -- /usr/sbin/apachectl start"],
    ),
    (
        "mariadb.service",
        "Type=notify
PrivateNetwork=false
User=mysql
AmbientCapabilities=CAP_IPC_LOCK
ProtectSystem=full
ProtectHome=true
ExecStart=/bin/sh -c \"set -f; [ ! -e /usr/bin/galera_recovery ] && VAR= || \\
 VAR=`/usr/bin/galera_recovery`; [ $? -eq 0 ] || exit 1; \\
 exec /usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER $VAR\"
UMask=007
PrivateTmp=false
TimeoutStartSec=900",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /bin/sh -c \"set -f; [ ! -e /usr/bin/galera_recovery ] && VAR= ||  \
             VAR=`/usr/bin/galera_recovery`; [ $? -eq 0 ] || exit 1;  exec /usr/sbin/mariadbd $MYSQLD_OPTS \
             $_WSREP_NEW_CLUSTER $VAR\"",
        ],
    ),
    (
        "haproxy.service",
        "EnvironmentFile=-/etc/default/haproxy
BindReadOnlyPaths=/dev/log:/var/lib/haproxy/dev/log
Environment=\"CONFIG=/etc/haproxy/haproxy.cfg\" \"PIDFILE=/run/haproxy.pid\" \"EXTRAOPTS=-S /run/haproxy-master.sock\"
ExecStart=/usr/sbin/haproxy -Ws -f $CONFIG -p $PIDFILE $EXTRAOPTS
ExecReload=/usr/sbin/haproxy -Ws -f $CONFIG -c -q $EXTRAOPTS
ExecReload=/bin/kill -USR2 $MAINPID
KillMode=mixed
Type=notify",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/sbin/haproxy -Ws -f $CONFIG -p $PIDFILE $EXTRAOPTS",
        ],
    ),
    (
        "memcached.service",
        "ExecStart=/usr/share/memcached/scripts/systemd-memcached-wrapper /etc/memcached.conf
PrivateTmp=true
ProtectSystem=full
NoNewPrivileges=true
PrivateDevices=true
CapabilityBoundingSet=CAP_SETGID CAP_SETUID CAP_SYS_RESOURCE
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
MemoryDenyWriteExecute=true
RestrictNamespaces=true",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/share/memcached/scripts/systemd-memcached-wrapper \
             /etc/memcached.conf",
        ],
    ),
    (
        "rabbitmq-server.service",
        "Type=notify
User=rabbitmq
UMask=0027
NotifyAccess=all
TimeoutStartSec=600
ExecStart=/usr/lib/rabbitmq/bin/rabbitmq-server
ExecStop=/usr/sbin/rabbitmqctl stop",
        &[PLAIN_RUN, "ExecStart=/usr/local/bin/bywire run -- /usr/lib/rabbitmq/bin/rabbitmq-server"],
    ),
    (
        "php8.2-fpm.service",
        "Type=notify
ExecStart=/usr/sbin/php-fpm8.2 --nodaemonize --fpm-config /etc/php/8.2/fpm/php-fpm.conf
ExecStartPost=-/usr/lib/php/php-fpm-socket-helper install /run/php/php-fpm.sock /etc/php/8.2/fpm/pool.d/www.conf 82
ExecReload=/bin/kill -USR2 $MAINPID",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/sbin/php-fpm8.2 --nodaemonize --fpm-config \
             /etc/php/8.2/fpm/php-fpm.conf",
        ],
    ),
    (
        "pgbouncer.service",
        "Type=notify
User=postgres
ExecStart=/usr/sbin/pgbouncer /etc/pgbouncer/pgbouncer.ini
ExecReload=/bin/kill -HUP $MAINPID
KillSignal=SIGINT",
        &[
            PLAIN_RUN,
            "ExecStart=/usr/local/bin/bywire run -- /usr/sbin/pgbouncer /etc/pgbouncer/pgbouncer.ini",
        ],
    ),
];

/// One of these, as it is without a manager to ask.
pub fn unit(name: &str) -> Unit {
    let (_, settings, _) = UNITS.into_iter().find(|(known, ..)| *known == name).expect("it is in the table");
    let mut files = UnitFile::default();
    files.read(&format!("[Service]\n{settings}\n"));
    let cluster = name.starts_with("postgresql@").then(|| Cluster {
        version: "15".into(),
        name: "main".into(),
        data: "/var/lib/postgresql/15/main".into(),
        user: "postgres".into(),
        log: Some("/var/log/postgresql/postgresql-15-main.log".into()),
        language: Some("C.UTF-8".into()),
        ..Cluster::default()
    });
    let sandbox = files.service.clone();
    Unit { name: name.into(), files, sandbox, cluster }
}

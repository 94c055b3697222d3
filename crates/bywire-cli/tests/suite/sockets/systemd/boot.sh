# Boots systemd over a throw-away copy of this machine's files, in namespaces of its own that the caller has made. It
# runs the script `inside` of the directory SHARED, which is /run/test there, and ends with it.
# usage: boot.sh SHARED EMPTY-DIRECTORY
set -e
shared=$1 root=$2/merged
mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$root"
mount -t overlay overlay -o lowerdir=/,upperdir="$2/upper",workdir="$2/work" "$root"
for name in tmp run dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$name"; done
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
# Nothing of this machine's kernel is changed.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -m 1777 "$root/dev/shm" && mkdir "$root/dev/pts" "$root/run/test" "$root/mnt/old"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"; ln -s fd/1 "$root/dev/stdout"; ln -s fd/2 "$root/dev/stderr"
mount --bind "$shared" "$root/run/test"
ip link set lo up
units=$root/etc/systemd/system
for name in sysctl modules-load remount-fs update-utmp random-seed; do
    ln -sf /dev/null "$units/systemd-$name.service"
done
cat >"$units/inside.service" <<'END'
[Unit]
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/sh /run/test/inside
StandardOutput=file:/run/test/output
StandardError=inherit
END
printf '[Unit]\nRequires=basic.target inside.service\n' >"$units/inside.target"
cd "$root"
pivot_root . mnt/old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh -c \
    'umount -l /mnt/old; exec /lib/systemd/systemd --unit=inside.target --log-target=null --show-status=no'

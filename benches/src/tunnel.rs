//! Other programs that carry Ethernet between two namespaces, each without encryption, over a veth pair of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::namespaces::{NamespaceLink, Namespaces, PREFIX_LENGTH, Side};

use crate::child_guard::ChildGuard;
use crate::ethernet::{Join, inside};

/// The interface that programs see.
const INTERFACE: &str = "by0";

/// The MTU below the tunnels: longer than their frames, so that none is fragmented twice.
const UNDERLAY_MTU_BYTES: u32 = 9200;
const UNDERLAY: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 77, 1), Ipv4Addr::new(192, 168, 77, 2)];

/// A daemon that has not made its interface within this time is killed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A rival, by its name in the tables, and the MTU that it is given: the longest that it takes, up to 9000.
pub struct Rival {
    /// Its name.
    pub name: &'static str,
    /// Of its interface.
    pub mtu_bytes: u32,
    /// The program that it needs, and its Debian package.
    program: Option<(&'static str, &'static str)>,
    start: fn(&[Side; 2], &Path) -> Result<Vec<ChildGuard>>,
}

/// All of them.
pub const RIVALS: [Rival; 4] = [
    Rival { name: "kernel VXLAN", mtu_bytes: 9000, program: None, start: vxlan },
    Rival { name: "OpenVPN tap", mtu_bytes: 9000, program: Some(("openvpn", "openvpn")), start: openvpn },
    Rival { name: "tinc", mtu_bytes: 1500, program: Some(("tincd", "tinc")), start: tinc },
    Rival { name: "vde", mtu_bytes: 1500, program: Some(("vde_plug2tap", "vde2")), start: vde },
];

impl Rival {
    /// Joins two namespaces by it.
    pub fn join(&'static self) -> Join {
        Rc::new(|| self.open())
    }

    fn open(&self) -> Result<Namespaces> {
        if let Some((program, package)) = self.program {
            let mut look = Command::new("sh");
            look.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
            ensure!(
                look.status()?.success(),
                "{program} is not installed: benches/ethernet installs it as root, or apt-get install {package}"
            );
        }
        Namespaces::joined(|source, target| {
            let sides = [source, target];
            underlay(&sides).context("cannot set up a veth pair")?;
            let directory = tempfile::tempdir()?;
            let daemons = (self.start)(&sides, directory.path())?;
            for side in &sides {
                self.bring_up(side)?;
            }
            Ok(NamespaceLink { name: self.name, processes: Vec::new(), kept: Box::new((daemons, directory)) })
        })
    }

    /// Waits for the interface, and gives it its address.
    fn bring_up(&self, side: &Side) -> Result<()> {
        let batch = format!(
            "link set {INTERFACE} mtu {} up\naddress add {}/{PREFIX_LENGTH} dev {INTERFACE}\n",
            self.mtu_bytes,
            side.namespace.address()
        );
        let started = Instant::now();
        while let Err(error) = side.namespace.configure(&batch) {
            ensure!(started.elapsed() < TIMEOUT, "{} makes no interface: {error:#}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn underlay(sides: &[Side; 2]) -> Result<()> {
    let mtu = UNDERLAY_MTU_BYTES;
    sides[0].namespace.configure(&format!(
        "link add under0 mtu {mtu} type veth peer name under0 mtu {mtu} netns {}\n",
        sides[1].process
    ))?;
    for (side, address) in sides.iter().zip(UNDERLAY) {
        let batch = format!("address add {address}/24 dev under0\nlink set under0 up\n");
        side.namespace.configure(&batch)?;
    }
    Ok(())
}

fn daemon(side: &Side, words: &[&str]) -> Result<ChildGuard> {
    let mut command = inside(side.namespace, None, words)?;
    // An open standard input: some programs exit when it is closed.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(ChildGuard(command.spawn().with_context(|| format!("cannot start {}", words[0]))?))
}

fn vxlan(sides: &[Side; 2], _: &Path) -> Result<Vec<ChildGuard>> {
    for (own, side) in sides.iter().enumerate() {
        let (here, there) = (UNDERLAY[own], UNDERLAY[1 - own]);
        side.namespace
            .configure(&format!(
                "link add {INTERFACE} type vxlan id 77 local {here} remote {there} dstport 4789 dev under0\n"
            ))
            .context("this kernel has no VXLAN")?;
    }
    Ok(Vec::new())
}

fn openvpn(sides: &[Side; 2], _: &Path) -> Result<Vec<ChildGuard>> {
    let start = |own: usize| {
        let (here, there) = (UNDERLAY[own].to_string(), UNDERLAY[1 - own].to_string());
        let plain = ["--cipher", "none", "--auth", "none", "--tun-mtu", "9000", "--mssfix", "0"];
        let ends = ["openvpn", "--dev-type", "tap", "--dev", INTERFACE, "--local", &here, "--remote", &there];
        daemon(&sides[own], &[&ends[..], &plain].concat())
    };
    Ok(vec![start(0)?, start(1)?])
}

fn vde(sides: &[Side; 2], directory: &Path) -> Result<Vec<ChildGuard>> {
    let switch = directory.join("switch");
    let switch = switch.to_str().context("a directory without a name")?;
    let mut all = vec![daemon(&sides[0], &["vde_switch", "-s", switch])?];
    let started = Instant::now();
    while !Path::new(switch).join("ctl").exists() {
        ensure!(started.elapsed() < TIMEOUT, "vde_switch does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    for side in sides {
        all.push(daemon(side, &["vde_plug2tap", "-s", switch, INTERFACE])?);
    }
    Ok(all)
}

/// Two nodes that know each other's keys, without encryption or digests.
fn tinc(sides: &[Side; 2], directory: &Path) -> Result<Vec<ChildGuard>> {
    let names = ["source", "target"];
    let home = |name: &str| directory.join(name);
    for (name, address) in names.iter().zip(UNDERLAY) {
        fs::create_dir_all(home(name).join("hosts"))?;
        let other = if *name == names[0] { "ConnectTo = target\n" } else { "" };
        let configuration =
            format!("Name = {name}\nMode = switch\nDeviceType = tap\nInterface = {INTERFACE}\n{other}");
        fs::write(home(name).join("tinc.conf"), configuration)?;
        let host = format!("Address = {address}\nCipher = none\nDigest = none\nCompression = 0\n");
        fs::write(home(name).join("hosts").join(name), host)?;
        let mut keys = Command::new("tincd");
        keys.arg("-c").arg(home(name)).args(["-K", "2048"]).stdin(Stdio::null());
        let made = keys.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(made.success(), "tincd makes no keys");
    }
    for (own, other) in [(names[0], names[1]), (names[1], names[0])] {
        fs::copy(home(other).join("hosts").join(other), home(own).join("hosts").join(other))?;
    }
    let start = |own: usize| {
        let (home, lock) = (home(names[own]), home(names[own]).join("pid"));
        let (home, lock) = (home.to_string_lossy(), format!("--pidfile={}", lock.display()));
        daemon(&sides[own], &["tincd", "-c", &home, "-D", &lock])
    };
    // The one that connects finds the other there.
    let target = start(1)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(vec![start(0)?, target])
}

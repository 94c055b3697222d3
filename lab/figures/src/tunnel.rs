//! Other programs that carry Ethernet or IP between two namespaces, over a veth pair of its own each.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{NamespaceLink, Namespaces, PREFIX_LENGTH, Side};

use crate::ethernet::{Join, inside};

/// The interface that programs see.
const INTERFACE: &str = "by0";

/// The MTU below the tunnels of one machine: longer than their frames, so that none is fragmented twice.
const LONG_WIRE_MTU_BYTES: u32 = 9200;
/// The MTU of a wire between machines.
pub const WIRE_MTU_BYTES: u32 = 1500;
const UNDERLAY: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 77, 1), Ipv4Addr::new(192, 168, 77, 2)];

/// The UDP port of those that are told one.
const PORT: u16 = 4242;

/// A daemon that has not made its interface within this time is killed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A rival, by its name in the tables.
pub struct Rival {
    /// Its name.
    pub name: &'static str,
    /// The MTU of its interface.
    pub mtu_bytes: u32,
    /// The MTU of the wire below it.
    wire_mtu_bytes: u32,
    /// Whether its packets are encrypted.
    pub is_encrypted: bool,
    /// The programs that it needs, with their Debian packages.
    programs: &'static [(&'static str, &'static str)],
    start: fn(&Rival, &[Side; 2], &Path) -> Result<Vec<Leader>>,
}

/// Those within one machine, without encryption. Each has the longest MTU that it takes, up to 9000.
pub const RIVALS: [Rival; 4] = [
    Rival { mtu_bytes: 9000, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..VXLAN },
    Rival { mtu_bytes: 9000, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..OPENVPN },
    Rival { mtu_bytes: 1500, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..TINC },
    Rival { wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..VDE },
];

/// Those over a wire of [`WIRE_MTU_BYTES`]. Each has its own default MTU, or the longest whose packets the wire takes whole.
pub const RIVALS_BETWEEN_MACHINES: [Rival; 9] = [
    VXLAN,
    Rival {
        name: "kernel WireGuard",
        mtu_bytes: 1420,
        is_encrypted: true,
        programs: &[WG],
        start: kernel_wireguard,
        ..VXLAN
    },
    OPENVPN,
    TINC,
    VDE,
    Rival {
        name: "OpenVPN tap encrypted",
        is_encrypted: true,
        programs: &[OPENVPN_PROGRAM, ("openssl", "openssl")],
        ..OPENVPN
    },
    Rival { name: "tinc encrypted", is_encrypted: true, ..TINC },
    Rival {
        name: "nebula",
        mtu_bytes: 1300,
        is_encrypted: true,
        programs: &[("nebula", "nebula"), ("nebula-cert", "nebula")],
        start: nebula,
        ..VXLAN
    },
    Rival {
        name: "wireguard-go",
        mtu_bytes: 1420,
        is_encrypted: true,
        programs: &[("wireguard-go", "wireguard-go"), WG],
        start: wireguard_go,
        ..VXLAN
    },
];

const WG: (&str, &str) = ("wg", "wireguard-tools");
const OPENVPN_PROGRAM: (&str, &str) = ("openvpn", "openvpn");

const VXLAN: Rival = Rival {
    name: "kernel VXLAN",
    mtu_bytes: 1450,
    wire_mtu_bytes: WIRE_MTU_BYTES,
    is_encrypted: false,
    programs: &[],
    start: vxlan,
};
const OPENVPN: Rival =
    Rival { name: "OpenVPN tap", mtu_bytes: 1430, programs: &[OPENVPN_PROGRAM], start: openvpn, ..VXLAN };
const TINC: Rival =
    Rival { name: "tinc", mtu_bytes: 1400, programs: &[("tincd", "tinc")], start: tinc, ..VXLAN };
const VDE: Rival = Rival {
    name: "vde",
    mtu_bytes: 1500,
    programs: &[("vde_switch", "vde2"), ("vde_plug2tap", "vde2")],
    start: vde,
    ..VXLAN
};

impl Rival {
    /// Joins two namespaces by it.
    pub fn join(&'static self) -> Join {
        Rc::new(|| Ok(Rc::new(self.open()?)))
    }

    fn open(&self) -> Result<Namespaces> {
        for (program, package) in self.programs {
            let mut look = Command::new("sh");
            look.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
            ensure!(
                look.status()?.success(),
                "{program} is not installed: `./x figures` installs it as root, or apt-get install {package}"
            );
        }
        Namespaces::joined(|source, target| {
            let sides = [source, target];
            underlay(&sides, self.wire_mtu_bytes).context("cannot set up a veth pair")?;
            let directory = tempfile::tempdir()?;
            let daemons = (self.start)(self, &sides, directory.path())?;
            for side in &sides {
                self.bring_up(side)?;
            }
            let processes = daemons.iter().map(|daemon| daemon.child.id()).collect();
            Ok(NamespaceLink { name: self.name, processes, kept: Box::new((daemons, directory)) })
        })
    }

    /// Waits for the interface, and gives it its address.
    fn bring_up(&self, side: &Side) -> Result<()> {
        let batch = format!(
            "link set {INTERFACE} mtu {} up\naddress replace {}/{PREFIX_LENGTH} dev {INTERFACE}\n",
            self.mtu_bytes,
            side.namespace.address()
        );
        let made = await_success(|| side.namespace.configure(&batch));
        made.with_context(|| format!("{} makes no interface", self.name))
    }
}

fn underlay(sides: &[Side; 2], mtu: u32) -> Result<()> {
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

fn daemon(side: &Side, words: &[&str]) -> Result<Leader> {
    let mut command = inside(side.namespace, None, words)?;
    // An open standard input: some programs exit when it is closed.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    Leader::start(&mut command).with_context(|| format!("cannot start {}", words[0]))
}

/// Tries until it succeeds, or until a daemon would have been ready.
fn await_success(attempt: impl Fn() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    while let Err(error) = attempt() {
        if started.elapsed() > TIMEOUT {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What a program prints that ends by itself.
fn printed(words: &[&str]) -> Result<String> {
    let done = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("cannot start {}", words[0]))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{}: {}", words[0], said.lines().last().unwrap_or("it said nothing"));
    Ok(String::from_utf8(done.stdout)?)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a directory without a name")
}

fn vxlan(_: &Rival, sides: &[Side; 2], _: &Path) -> Result<Vec<Leader>> {
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

fn openvpn(rival: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    let files = ["source", "target"].map(|name| directory.join(name));
    let mut fingerprints = Vec::new();
    for file in files.iter().filter(|_| rival.is_encrypted) {
        fingerprints.push(certificate(file)?);
    }
    let mtu = rival.mtu_bytes.to_string();
    let start = |own: usize| {
        let (here, there) = (UNDERLAY[own].to_string(), UNDERLAY[1 - own].to_string());
        let ends = ["openvpn", "--dev-type", "tap", "--dev", INTERFACE, "--local", &here, "--remote", &there];
        let common = ["--tun-mtu", &mtu, "--mssfix", "0"];
        if !rival.is_encrypted {
            return daemon(
                &sides[own],
                &[&ends[..], &common, &["--cipher", "none", "--auth", "none"]].concat(),
            );
        }
        let (key, certificate) = (files[own].with_extension("key"), files[own].with_extension("crt"));
        let role: &[&str] = if own == 0 { &["--tls-client"] } else { &["--tls-server", "--dh", "none"] };
        let secured = ["--key", text(&key)?, "--cert", text(&certificate)?];
        let peer = ["--peer-fingerprint", &fingerprints[1 - own], "--data-ciphers", "AES-256-GCM"];
        daemon(&sides[own], &[&ends[..], &common, role, &secured, &peer].concat())
    };
    // The one that answers is there first.
    let target = start(1)?;
    Ok(vec![start(0)?, target])
}

/// Makes a key and a certificate that it signs itself, beside `file`. Returns the certificate's fingerprint.
fn certificate(file: &Path) -> Result<String> {
    let (key, certificate) = (file.with_extension("key"), file.with_extension("crt"));
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let files = ["-keyout", text(&key)?, "-out", text(&certificate)?, "-subj", "/CN=bench"];
    printed(&[&["openssl", "req", "-x509"][..], &curve, &files].concat())?;
    let shown =
        printed(&["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", text(&certificate)?])?;
    let (_, fingerprint) = shown.trim().split_once('=').context("openssl prints no fingerprint")?;
    Ok(fingerprint.to_owned())
}

fn vde(_: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    let switch = directory.join("switch");
    let switch = text(&switch)?;
    let mut all = vec![daemon(&sides[0], &["vde_switch", "-s", switch])?];
    await_success(|| {
        ensure!(Path::new(switch).join("ctl").exists(), "vde_switch does not start");
        Ok(())
    })?;
    for side in sides {
        all.push(daemon(side, &["vde_plug2tap", "-s", switch, INTERFACE])?);
    }
    Ok(all)
}

/// Two nodes that know each other's keys.
fn tinc(rival: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    let names = ["source", "target"];
    let home = |name: &str| directory.join(name);
    // Its own cipher and digest otherwise.
    let plain = if rival.is_encrypted { "" } else { "Cipher = none\nDigest = none\n" };
    for (name, address) in names.iter().zip(UNDERLAY) {
        fs::create_dir_all(home(name).join("hosts"))?;
        let other = if *name == names[0] { "ConnectTo = target\n" } else { "" };
        let configuration =
            format!("Name = {name}\nMode = switch\nDeviceType = tap\nInterface = {INTERFACE}\n{other}");
        fs::write(home(name).join("tinc.conf"), configuration)?;
        let host = format!("Address = {address}\n{plain}Compression = 0\n");
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

/// Two hosts of one authority, which know where the other one is. All else is as it comes.
fn nebula(rival: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    let names = ["source", "target"];
    let file = |name: &str| directory.join(name);
    let (authority, authority_key) = (file("ca.crt"), file("ca.key"));
    let (authority, authority_key) = (text(&authority)?, text(&authority_key)?);
    printed(&["nebula-cert", "ca", "-name", "bench", "-out-crt", authority, "-out-key", authority_key])?;
    let mut daemons = Vec::new();
    for (own, side) in sides.iter().enumerate() {
        let (certificate, key) = (file(&format!("{}.crt", names[own])), file(&format!("{}.key", names[own])));
        let (certificate, key) = (text(&certificate)?, text(&key)?);
        let network = format!("{}/{PREFIX_LENGTH}", side.namespace.address());
        let signed = ["nebula-cert", "sign", "-ca-crt", authority, "-ca-key", authority_key];
        let host = ["-name", names[own], "-ip", &network, "-out-crt", certificate, "-out-key", key];
        printed(&[&signed[..], &host].concat())?;
        let (other, there) = (sides[1 - own].namespace.address(), UNDERLAY[1 - own]);
        let any = "[{port: any, proto: any, host: any}]";
        let settings = format!(
            "pki: {{ca: {authority}, cert: {certificate}, key: {key}}}\n\
             static_host_map: {{\"{other}\": [\"{there}:{PORT}\"]}}\n\
             lighthouse: {{am_lighthouse: false}}\n\
             listen: {{host: 0.0.0.0, port: {PORT}}}\n\
             tun: {{dev: {INTERFACE}, mtu: {}}}\n\
             firewall: {{outbound: {any}, inbound: {any}}}\n",
            rival.mtu_bytes
        );
        let configuration = file(&format!("{}.yml", names[own]));
        fs::write(&configuration, settings)?;
        daemons.push(daemon(side, &["nebula", "-config", text(&configuration)?])?);
    }
    Ok(daemons)
}

fn wireguard_go(_: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    // Both have their sockets in one directory, under the names of their interfaces.
    let names = ["s", "t"].map(|end| format!("wg{}{end}", std::process::id()));
    let mut daemons = Vec::new();
    for (side, name) in sides.iter().zip(&names) {
        daemons.push(daemon(side, &["wireguard-go", "-f", name])?);
    }
    let keys = wireguard_keys(directory)?;
    for (own, side) in sides.iter().enumerate() {
        let name = &names[own];
        let configure = || wireguard_peer(sides, own, name, &keys);
        await_success(configure).context("wireguard-go is not ready")?;
        side.namespace.configure(&format!("link set {name} name {INTERFACE}\n"))?;
    }
    Ok(daemons)
}

fn kernel_wireguard(_: &Rival, sides: &[Side; 2], directory: &Path) -> Result<Vec<Leader>> {
    let keys = wireguard_keys(directory)?;
    for (own, side) in sides.iter().enumerate() {
        let made = side.namespace.configure(&format!("link add {INTERFACE} type wireguard\n"));
        made.context("this kernel has no WireGuard")?;
        wireguard_peer(sides, own, INTERFACE, &keys)?;
    }
    Ok(Vec::new())
}

/// The file of a private key, and the public key, of either end.
fn wireguard_keys(directory: &Path) -> Result<[(PathBuf, String); 2]> {
    let make = |name: &str| -> Result<(PathBuf, String)> {
        let path = directory.join(name);
        fs::write(&path, printed(&["wg", "genkey"])?)?;
        let public = printed(&["sh", "-c", &format!("wg pubkey < '{}'", text(&path)?)])?;
        Ok((path, public.trim().to_owned()))
    };
    Ok([make("source.key")?, make("target.key")?])
}

fn wireguard_peer(sides: &[Side; 2], own: usize, name: &str, keys: &[(PathBuf, String); 2]) -> Result<()> {
    let (private, there) = (text(&keys[own].0)?, format!("{}:{PORT}", UNDERLAY[1 - own]));
    let (port, other) = (PORT.to_string(), format!("{}/32", sides[1 - own].namespace.address()));
    let own_part = ["wg", "set", name, "listen-port", &port, "private-key", private];
    let peer = ["peer", &keys[1 - own].1, "allowed-ips", &other, "endpoint", &there];
    let mut command = inside(sides[own].namespace, None, &[&own_part[..], &peer].concat())?;
    let done = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "wg: {}", said.lines().last().unwrap_or("it said nothing"));
    Ok(())
}

//! Programs of MPICH over the provider, with the variables of docs/mpi.md.

mod loaded;

use std::path::PathBuf;

use loaded::{Loaded, page, run};

/// Where MPICH of the Python Package Index is, as the laboratory looks for it.
fn prefix() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    set("BYWIRE_MPICH").or_else(|| Some(cache()?.join("bywire/mpich")))
}

#[test]
fn ranks_of_mpich_exchange_messages_of_every_length_and_kind() {
    let prefix = prefix().unwrap_or_default();
    let [compiler, launcher] =
        ["bin/mpicc", "bin/mpiexec"].map(|name| prefix.join(name).display().to_string());
    let Some(loaded) = Loaded::new(&[&compiler, &launcher], "stdio.h") else { return };
    let page = page();
    let printed = page.lines().find(|line| line.starts_with("MPIR_CVAR_")).expect("a command");
    let program = loaded.compile(&compiler, "ping_pong.c", &[]);
    for ranks in ["2", "3"] {
        let mut command = loaded.command(&launcher);
        command.env("FI_PROVIDER", "bywire");
        let variables = printed.split(' ').map_while(|word| word.split_once('='));
        command.envs(variables).args(["-n", ranks]).arg(&program);
        assert_eq!(run(&mut command), "exchanged\n", "{ranks} ranks");
    }
}

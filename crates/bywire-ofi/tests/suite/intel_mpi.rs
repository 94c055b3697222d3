//! Two and four ranks of Intel MPI of the Python Package Index exchange messages over the provider, with the variables of
//! docs/mpi.md, and so do its own benchmarks (IMB). `./x test` installs it in the cache.

use std::path::PathBuf;
use std::process::Command;

use crate::loaded::{Loaded, intel_mpi, intel_mpi_variables, run};

/// The provider, a program, and where Intel MPI is. `None`: the machine lacks it, which is printed.
fn installed() -> Option<(Loaded, PathBuf)> {
    let prefix = intel_mpi().unwrap_or_default();
    let [compiler, launcher] =
        ["bin/mpicc", "bin/mpiexec"].map(|name| prefix.join(name).display().to_string());
    Some((Loaded::new(&[&compiler, &launcher], "stdio.h")?, prefix))
}

/// A job of this many ranks.
fn job(loaded: &Loaded, prefix: &std::path::Path, ranks: &str) -> Command {
    let mut command = loaded.command(prefix.join("bin/mpiexec"));
    command.env("FI_PROVIDER", "bywire").envs(intel_mpi_variables()).args(["-n", ranks]);
    command
}

#[test]
fn ranks_of_intel_mpi_exchange_messages_of_every_length_and_kind() {
    let Some((loaded, prefix)) = installed() else { return };
    // As its `mpicc` does, which finds its own place only by a variable.
    let (headers, libraries) = (prefix.join("include"), prefix.join("lib"));
    let [headers, libraries] = [&headers, &libraries].map(|place| place.display());
    let options = [format!("-I{headers}"), format!("-L{libraries}"), format!("-Wl,-rpath,{libraries}")];
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    options.extend(["-Wl,--no-as-needed", "-lmpi"]);
    let program = loaded.compile("cc", "ping_pong.c", &options);
    for ranks in ["2", "4"] {
        let mut command = job(&loaded, &prefix, ranks);
        // It names the provider that it uses.
        let printed = run(command.env("I_MPI_DEBUG", "1").arg(&program));
        assert!(printed.contains("libfabric provider: bywire"), "{ranks} ranks: {printed}");
        assert!(printed.ends_with("exchanged\n"), "{ranks} ranks: {printed}");
    }
}

#[test]
fn the_benchmarks_of_intel_mpi_run_to_their_end() {
    let Some((loaded, prefix)) = installed() else { return };
    for (program, ranks, benchmarks) in [
        ("IMB-MPI1", "2", &["PingPong", "Sendrecv"][..]),
        ("IMB-MPI1", "4", &["Allreduce", "Alltoall"]),
        ("IMB-RMA", "2", &["Unidir_put", "Unidir_get"]),
    ] {
        let path = prefix.join("bin").join(program);
        if !path.exists() {
            println!("not run: {} is not part of this Intel MPI", path.display());
            continue;
        }
        let mut command = job(&loaded, &prefix, ranks);
        command.arg(path).args(["-npmin", ranks, "-iter", "20", "-msglog", "0:17"]).args(benchmarks);
        // They have no path to the library, which `mpicc` gives to other programs.
        command.env("LD_LIBRARY_PATH", prefix.join("lib")).env("I_MPI_DEBUG", "1");
        let printed = run(&mut command);
        assert!(printed.contains("libfabric provider: bywire"), "{program}: {printed}");
        // A row of each benchmark has the longest length.
        let rows = printed.lines().filter(|line| line.trim_start().starts_with("131072 "));
        assert!(rows.count() >= benchmarks.len(), "{program}: {printed}");
        assert!(printed.contains("All processes entering MPI_Finalize"), "{program}: {printed}");
    }
}

//! The measurement of a web server. It has pairs like every other one, but a plan of its own.

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use bywire_results::parameter::Parameters;

use super::{Measurement, Topology};
use crate::aggregation::Subject;
use crate::options::{MTU_BYTES, Request};
use crate::placement::Placement;
use crate::plan::Job;
use crate::resolution::choose_cores;
use crate::{ethernet, web};

impl Measurement {
    /// Checks a request for a web server and opens the namespaces that its pairs run in.
    pub(super) fn of_web(request: &Request, topology: &mut Topology) -> Result<Self> {
        let mut plan = web::Plan::of(request).map_err(Misuse::of)?;
        // Checked before anything is started.
        if let Some(path) = &request.trace_out {
            web::Trace::write(&plan, path).map_err(Misuse::of)?;
        }
        let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
        let frame_link = plan.link.frame_link().map(|link| {
            let coalesce = request.coalesce.unwrap_or(true);
            ethernet::frame_link(link, mtu_bytes, coalesce, request.segmentation.unwrap_or(true))
        });
        let placement = match frame_link {
            Some(frame_link) => topology.ethernet(frame_link.map_err(Misuse::of)?)?,
            None => Placement::Processes,
        };
        plan.bind = placement.target_address();
        plan.carriers = placement.carriers().to_vec();
        let cores = choose_cores(request.cores, &placement).map_err(Misuse::of)?;
        let between = if matches!(placement, Placement::Namespaces(_)) { "namespaces" } else { "processes" };
        Ok(Self {
            parameters: parameters(request, &plan),
            link: Some(plan.link.name().to_owned()),
            between: between.to_owned(),
            ..Self::of(Subject::Web(plan.clone()), Job::Web(plan), placement, cores)
        })
    }
}

/// The chosen options in the words of the command line, with defaults for the others and with the server's
/// configuration.
fn parameters(request: &Request, plan: &web::Plan) -> Parameters {
    let zipf = plan.test == web::Test::Zipf;
    let resolved = Request {
        server: Some(plan.server.name().to_owned()),
        connections: Some(plan.connections),
        alpha: zipf.then_some(plan.alpha),
        rank: zipf.then(|| plan.rank.name().to_owned()),
        documents: zipf.then_some(plan.documents),
        seed: Some(plan.seed),
        mtu_bytes: plan.link.frame_link().map(|_| request.mtu_bytes.unwrap_or(MTU_BYTES)),
        ..request.clone()
    };
    let mut parameters = resolved.parameters();
    parameters.insert("sendfile".to_owned(), "on".into());
    parameters.insert("blocks".to_owned(), plan.blocks.into());
    parameters.insert("block_us".to_owned(), plan.block_us.into());
    parameters
}

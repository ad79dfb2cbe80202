// Finding a data source. The package that scenes have for it probes for what later versions of the runtime export, which a
// bundler takes for a mistake; here there is one version.

import { getDataSourceSrv } from '@grafana/runtime';

export const getDataSourceInstance = async (ref, scopedVars) => getDataSourceSrv().get(ref, scopedVars);

export const getDataSourceInstanceList = async (filters) => getDataSourceSrv().getList(filters);

export const getDefaultDataSourceInstanceListItem = async () => getDataSourceSrv().getInstanceSettings(null);

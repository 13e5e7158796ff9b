// SPDX-License-Identifier: BSD-3-Clause
import type { INotice, IStatus, Params } from './status';

/** A host with less than this part of its budget left has no memory for more. */
const FULL = 0.98;

/** What people should know: what the scheduler reports, and a host without memory. */
export function noticesOf({
  host,
  gpus,
  notices,
  unshared
}: Pick<IStatus, 'host' | 'gpus' | 'notices' | 'unshared'>): Pick<
  INotice,
  'group' | 'code' | 'params'
>[] {
  const isFull =
    host !== null && gpus.length > 0 && host.swapped >= FULL * host.budget;
  return [
    ...(isFull
      ? [{ group: '', code: 'host_full', params: { ...host } as Params }]
      : []),
    // What runs without us is listed with its remedy.
    ...notices.filter(
      ({ group }) => !unshared.some(({ kernel_id }) => kernel_id === group)
    )
  ];
}

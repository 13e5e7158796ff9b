// SPDX-License-Identifier: BSD-3-Clause
import type { INotice, IStatus, Params } from './status';

/** A host with less than this part of its budget left has no memory for more. */
const FULL = 0.98;

/** Notices about a notebook that matter only while it is there. */
const OF_LIVING = ['stuck', 'hibernation_stuck'];

/** What users should know: what the scheduler reports, each once, and a host without memory. */
export function noticesOf({
  host,
  gpus,
  notices,
  groups,
  unshared
}: Pick<IStatus, 'host' | 'gpus' | 'groups' | 'notices' | 'unshared'>): Pick<
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
      ({ group, code }, index) =>
        !unshared.some(({ kernel_id }) => kernel_id === group) &&
        (!OF_LIVING.includes(code) || groups.some(({ id }) => id === group)) &&
        // The scheduler may report the same again.
        !notices
          .slice(index + 1)
          .some(
            other =>
              group !== '' && other.group === group && other.code === code
          )
    )
  ];
}

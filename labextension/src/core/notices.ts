// SPDX-License-Identifier: BSD-3-Clause
import type { INotice, IStatus, Params } from './status';

/** The part of the host memory budget from which the host counts as full. */
const FULL = 0.98;

/** Notices that matter only while their notebook exists. */
const OF_LIVING = ['stuck', 'hibernation_stuck'];

/** The notices for users: each notice of the scheduler once, full host memory, and a disk that has failed. */
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
    ...(host?.disk_tier?.fault
      ? [
          {
            group: '',
            code: 'disk_failed',
            params: { fault: host.disk_tier.fault }
          }
        ]
      : []),
    // Kernels that do not share are listed in a section of their own.
    ...notices.filter(
      ({ group, code }, index) =>
        !unshared.some(({ kernel_id }) => kernel_id === group) &&
        (!OF_LIVING.includes(code) || groups.some(({ id }) => id === group)) &&
        // The scheduler may repeat a notice.
        !notices
          .slice(index + 1)
          .some(
            other =>
              group !== '' && other.group === group && other.code === code
          )
    )
  ];
}

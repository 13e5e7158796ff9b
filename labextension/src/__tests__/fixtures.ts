// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IGroup, IStatus } from '../status';

const GiB = 1024 ** 3;

/** A text whose spaces are ordinary ones. */
export function plain(text: string): string {
  return text.replace(/\u00a0/g, ' ');
}

/** English, as JupyterLab's null translator gives it. */
export const trans = {
  __: (message: string, ...values: unknown[]): string =>
    message.replace(/%(\d)/g, (_, index: string) =>
      plain(String(values[Number(index) - 1]))
    )
} as TranslationBundle;

export function makeGroup(id: string, changes: Partial<IGroup> = {}): IGroup {
  return {
    id,
    name: `${id}.ipynb`,
    kind: 'kernel',
    state: 'idle',
    since: 90,
    position: null,
    reason: null,
    yields_in: null,
    estimate: null,
    cell: null,
    gpus: [
      {
        uuid: 'GPU-0',
        footprint: 6 * GiB,
        resident: 4 * GiB,
        swapped: 2 * GiB,
        pinned: GiB,
        context: 0
      }
    ],
    session: null,
    ...changes
  };
}

export function makeStatus(...groups: IGroup[]): IStatus {
  return {
    availability: { code: 'ok', params: {} },
    hint: 1,
    time: 100,
    gpus: [
      {
        uuid: 'GPU-0',
        index: 0,
        name: 'Simulated GPU',
        total: 20 * GiB,
        reserve: 0,
        used: 15 * GiB,
        resident: 4 * GiB,
        pinned: GiB,
        contexts: GiB,
        foreign: 2 * GiB,
        ghosts: 0,
        free: 5 * GiB
      }
    ],
    host: { budget: 64 * GiB, swapped: 2 * GiB, promised: 6 * GiB },
    groups,
    notices: []
  };
}

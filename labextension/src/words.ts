// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';

import { formatBytes, formatDuration } from './format';
import type { ICode, IGroup, Params } from './status';

/** A statement, and what to do about it. */
export interface IExplanation {
  title: string;
  text: string;
  /** Something to type, shown as code. */
  command?: string;
}

/** What a notebook is called in a row: its file, without the folders. */
export function shortName(name: string): string {
  return name.endsWith('.ipynb') ? name.slice(name.lastIndexOf('/') + 1) : name;
}

/** What a notebook is called in a sentence. */
function wordName(name: unknown): string {
  return typeof name === 'string'
    ? shortName(name).replace(/\.ipynb$/, '')
    : '';
}

function size(params: Params, key: string): string {
  return formatBytes(Number(params[key] ?? 0));
}

function text(params: Params, key: string): string {
  const value = params[key];
  return typeof value === 'string' || typeof value === 'number'
    ? String(value)
    : '';
}

function holder(params: Params, key: string, trans: TranslationBundle): string {
  return wordName(params[key]) || trans.__('another notebook');
}

/** "x yields in 3 s", or "x has the GPU" where nobody can say when. */
function yields(
  params: Params,
  key: string,
  trans: TranslationBundle,
  elapsed: number
): string {
  const name = holder(params, 'holder_name', trans);
  const left = params[key];
  if (typeof left !== 'number') {
    return trans.__('%1 has the GPU', name);
  }
  return left - elapsed >= 0.5
    ? trans.__('%1 yields in %2', name, formatDuration(left - elapsed))
    : trans.__('%1 is about to yield', name);
}

/**
 * Why a group waits.
 *
 * @param elapsed - Seconds since the scheduler said so.
 */
export function reasonText(
  reason: ICode | null,
  trans: TranslationBundle,
  elapsed = 0
): string {
  const { code, params } = reason ?? { code: '', params: {} };
  switch (code) {
    case 'needs_memory':
      return trans.__(
        'needs %1, lacks %2: %3',
        size(params, 'need'),
        size(params, 'lack'),
        yields(params, 'yields_in', trans, elapsed)
      );
    case 'serialised':
      return trans.__(
        'one notebook at a time: %1',
        yields(params, 'yields_in', trans, elapsed)
      );
    case 'making_room': {
      const victims = Array.isArray(params['victims'])
        ? params['victims'].map(wordName)
        : [];
      return victims.length
        ? trans.__(
            'making room: moving %1 of %2 to host memory',
            size(params, 'lack'),
            victims.join(', ')
          )
        : trans.__('making room for %1', size(params, 'lack'));
    }
    case 'filling': {
      const victims = Array.isArray(params['victims'])
        ? params['victims'].map(wordName)
        : [];
      return victims.length
        ? trans.__(
            'its memory is arriving while that of %1 leaves: %2 of %3',
            victims.join(', '),
            size(params, 'arrived'),
            size(params, 'footprint')
          )
        : trans.__(
            'its memory is arriving: %1 of %2',
            size(params, 'arrived'),
            size(params, 'footprint')
          );
    }
    case 'draining':
      return trans.__(
        '%1 is finishing its last GPU work (for %2)',
        holder(params, 'holder_name', trans),
        formatDuration(Number(params['for'] ?? 0) + elapsed)
      );
    case 'behind':
      return trans.__('after %1', holder(params, 'ahead_name', trans));
    case 'residency':
      return trans.__(
        'its memory has only just arrived: %1',
        yields(params, 'until_in', trans, elapsed)
      );
    case 'foreign_use':
      return trans.__(
        'lacks %1: programs outside the sharing hold %2',
        size(params, 'lack'),
        size(params, 'foreign')
      );
    case 'crowded':
      return trans.__(
        'lacks %1: others hold %2 that cannot move (CUDA contexts, shared memory); shut a notebook down, or restart one that holds such memory',
        size(params, 'lack'),
        size(params, 'fixed')
      );
    case 'dying':
      return trans.__(
        'lacks %1: memory of a process that ended is being freed',
        size(params, 'lack')
      );
    default:
      return trans.__('waiting for the GPU');
  }
}

/** What a group that does not wait is doing, in a few words. */
export function stateText(
  group: IGroup,
  trans: TranslationBundle,
  now: number,
  elapsed: number
): string {
  const parts: string[] = [];
  const since = formatDuration(now - (group.cell?.since ?? group.since));
  switch (group.state) {
    case 'running':
      parts.push(
        group.cell
          ? trans.__('cell for %1', since)
          : trans.__('running for %1', since)
      );
      break;
    case 'held':
      parts.push(
        group.cell
          ? trans.__('cell for %1, not using the GPU now', since)
          : trans.__('for %1', since)
      );
      break;
    case 'yielding':
      parts.push(trans.__('finishing its last GPU work'));
      break;
    case 'moving':
      parts.push(trans.__('moving its memory to the GPU'));
      break;
    default:
      parts.push(
        group.cell
          ? trans.__('cell for %1, not using the GPU', since)
          : trans.__('for %1', since)
      );
  }
  if (group.yields_in !== null && group.state === 'running') {
    parts.push(
      trans.__('yields in %1', formatDuration(group.yields_in - elapsed))
    );
  }
  return parts.join(' · ');
}

/** Where a group's memory is. */
export function memoryText(
  resident: number,
  swapped: number,
  trans: TranslationBundle
): string {
  if (resident + swapped === 0) {
    return trans.__('no memory');
  }
  if (swapped === 0) {
    return trans.__('all resident');
  }
  if (resident === 0) {
    return trans.__('all in host memory');
  }
  return trans.__(
    '%1 resident, %2 in host memory',
    formatBytes(resident),
    formatBytes(swapped)
  );
}

/** Why nothing is shared, or is shared only in part; null if all is well. */
export function availabilityText(
  { code, params }: ICode,
  trans: TranslationBundle
): IExplanation | null {
  switch (code) {
    case 'ok':
      return null;
    case 'no_driver':
      return {
        title: trans.__('No NVIDIA driver was found'),
        text: trans.__(
          'There is no GPU to share on this server. Install the NVIDIA driver and start Jupyter again, or try a simulated GPU:'
        ),
        command: 'GPUSHARE_SIM=1 jupyter lab'
      };
    case 'not_installed':
      return {
        title: trans.__('The driver cannot be used'),
        text: text(params, 'error')
      };
    case 'bad_configuration':
      return {
        title: trans.__('The configuration has a mistake'),
        text: trans.__(
          '%1. Correct it and start Jupyter again.',
          text(params, 'error')
        )
      };
    case 'disabled':
      return {
        title: trans.__('GPU sharing is switched off'),
        text: trans.__(
          'Notebooks use the GPU without taking turns. To share it, remove this line from the configuration of the Jupyter server:'
        ),
        command: 'c.GpuShare.enabled = False'
      };
    case 'starting':
      return {
        title: trans.__('Starting'),
        text: trans.__('The scheduler is being started.')
      };
    case 'scheduler_unreachable':
      return {
        title: trans.__('The scheduler does not answer'),
        text: trans.__(
          '%1. Notebooks go on without taking turns; the server keeps trying. To see what is wrong, run:',
          text(params, 'error') ||
            trans.__('Nobody answers at %1', text(params, 'socket'))
        ),
        command: 'gpushare doctor'
      };
    case 'remote_kernels':
      return {
        title: trans.__('Kernels run on another machine'),
        text: trans.__(
          'This server starts its kernels through the gateway %1. Install jupyter-gpushare there.',
          text(params, 'url')
        )
      };
    case 'provisioner_not_default':
      return {
        title: trans.__('Kernels of this server do not share the GPU'),
        text: trans.__(
          'They are started by the provisioner "%1", which was chosen in the configuration. To share the GPU, choose this one:',
          text(params, 'provisioner')
        ),
        command:
          'c.KernelProvisionerFactory.default_provisioner_name = "gpushare"'
      };
    case 'server_extension_missing':
      return {
        title: trans.__('The server part is not running'),
        text: trans.__(
          'Install jupyter-gpushare in the environment of the Jupyter server, enable it, and start the server again:'
        ),
        command: 'jupyter server extension enable jupyter_gpushare'
      };
    case 'forbidden':
      return {
        title: trans.__('You may not see the GPU'),
        text: trans.__(
          'This server does not let you read its state. Ask its administrator for the permission to read "gpushare".'
        )
      };
    case 'server_unreachable':
      return {
        title: trans.__('The Jupyter server does not answer'),
        text: trans.__('What you see here may be old; the panel keeps trying.')
      };
    default:
      return {
        title: trans.__('The GPU is not shared'),
        text: text(params, 'error') || trans.__('The server says: %1', code)
      };
  }
}

/** What is shown when all is well and nobody is there. */
export function nobodyText(trans: TranslationBundle): IExplanation {
  return {
    title: trans.__('Nobody uses the GPU yet'),
    text: trans.__(
      'Run a cell that uses CUDA: its notebook will appear here, and others will wait their turn when memory is short.'
    )
  };
}

/** What is shown when the driver has no GPU. */
export function noGpuText(trans: TranslationBundle): IExplanation {
  return {
    title: trans.__('No GPU was found'),
    text: trans.__(
      'The NVIDIA driver is installed, but it shows no GPU. To see what is wrong, run:'
    ),
    command: 'gpushare doctor'
  };
}

/** Something that people should know about a group. */
export function noticeText(
  name: string,
  { code, params }: ICode,
  trans: TranslationBundle
): string {
  switch (code) {
    case 'started_without_interposer':
      return trans.__(
        '%1 uses the GPU without taking turns: its kernel did not start with GPU sharing. Restart the kernel to try again.',
        name
      );
    default:
      return (
        text(params, 'text') ||
        text(params, 'error') ||
        trans.__('%1: %2', name, code)
      );
  }
}

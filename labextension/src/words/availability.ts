// SPDX-License-Identifier: BSD-3-Clause
import type { ICode, IStatus, IUnshared } from '../core/status';
import type { ITranslation } from '../core/translation';
import { text } from './params';

/** Why the panel shows nothing, or only a part. */
export function explain(
  status: IStatus,
  trans: ITranslation
): IExplanation | null {
  const explanation = availabilityText(status.availability, trans);
  if (explanation !== null) {
    return explanation;
  }
  if (status.gpus.length === 0) {
    return noGpuText(trans);
  }
  return status.groups.length === 0 && status.unshared.length === 0
    ? nobodyText(trans)
    : null;
}

/** The text while no notebook uses the GPU. */
export function nobodyText(trans: ITranslation): IExplanation {
  return {
    title: trans.__('No notebook is using the GPU yet'),
    text: trans.__(
      'Run a cell that uses CUDA, and its notebook appears here. When memory is short, notebooks take turns.'
    )
  };
}

/** The text if the driver reports no GPU. */
export function noGpuText(trans: ITranslation): IExplanation {
  return {
    title: trans.__('No GPU was found'),
    text: trans.__(
      'The NVIDIA driver is installed but reports no GPU. To find out why, run:'
    ),
    command: 'gpushare doctor'
  };
}

/** The problem, and what to do about it. */
export interface IExplanation {
  title: string;
  text: string;
  /** A command to type, shown as code. */
  command?: string;
}

/** The text for a code of a newer version. */
function codeText(code: string, trans: ITranslation): string {
  return trans.__('The server reported: %1', code);
}

/** Why a kernel of this server does not share the GPU, and what to do about it. */
export function unsharedText(
  name: string,
  { code, params }: Pick<IUnshared, 'code' | 'params'>,
  trans: ITranslation
): IExplanation {
  const title = trans.__('%1 is not sharing the GPU', name);
  switch (code) {
    case 'other_provisioner':
      return {
        title,
        text: trans.__(
          'Its kernelspec starts it with the provisioner "%1". Choose another kernel.',
          text(params, 'provisioner')
        )
      };
    case 'opted_out':
      return {
        title,
        text: trans.__(
          'Sharing is turned off for this kernel: by "gpushare": {"enabled": false} in the kernelspec, by GpuShareProvisioner.enabled = False, or by GPUSHARE_DISABLE=1. Remove the setting and restart the kernel.'
        )
      };
    case 'started_without_interposer':
      return {
        title,
        text: trans.__(
          'This kernel failed to start with GPU sharing and was started without it. Restart the kernel to try again; the Jupyter server log has the reason.'
        )
      };
    case 'started_before':
      return {
        title,
        text: trans.__(
          'This kernel was started before GPU sharing was enabled. Restart the kernel.'
        )
      };
    default:
      return { title, text: codeText(code, trans) };
  }
}

/** Why the GPU is not shared, or only partly; null if it is shared. */
export function availabilityText(
  { code, params }: ICode,
  trans: ITranslation
): IExplanation | null {
  switch (code) {
    case 'ok':
      return null;
    case 'no_driver':
      return {
        title: trans.__('No NVIDIA driver was found'),
        text: trans.__(
          'This server has no GPU to share. Install the NVIDIA driver and restart Jupyter, or try a simulated GPU:'
        ),
        command: 'GPUSHARE_SIM=1 jupyter lab'
      };
    case 'not_installed':
      return {
        title: trans.__('The NVIDIA driver cannot be used'),
        text: text(params, 'error')
      };
    case 'bad_configuration':
      return {
        title: trans.__('Invalid configuration'),
        text: trans.__(
          '%1. Fix the configuration and restart Jupyter.',
          text(params, 'error')
        )
      };
    case 'disabled':
      return {
        title: trans.__('GPU sharing is turned off'),
        text: trans.__(
          'Notebooks use the GPU without taking turns. To share it, remove this line from the configuration of the Jupyter server:'
        ),
        command: 'c.GpuShare.enabled = False'
      };
    case 'starting':
      return {
        title: trans.__('Starting'),
        text: trans.__('The scheduler is starting.')
      };
    case 'not_started':
      return {
        title: trans.__('GPU sharing did not start'),
        text: trans.__(
          '%1. Fix this and restart Jupyter. To check the installation, run:',
          text(params, 'error')
        ),
        command: 'gpushare doctor'
      };
    case 'scheduler_unreachable':
      return {
        title: trans.__('The scheduler is not responding'),
        text: trans.__(
          '%1. Notebooks keep running without taking turns, and the server keeps trying to connect. To find out why, run:',
          text(params, 'error') ||
            trans.__('No scheduler is listening at %1', text(params, 'socket'))
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
          'The configuration starts them with the provisioner "%1". To share the GPU, set:',
          text(params, 'provisioner')
        ),
        command:
          'c.KernelProvisionerFactory.default_provisioner_name = "gpushare"'
      };
    case 'server_extension_missing':
      return {
        title: trans.__('The server extension is not running'),
        text: trans.__(
          'Install jupyter-gpushare in the environment of the Jupyter server, enable it, and restart the server:'
        ),
        command: 'jupyter server extension enable jupyter_gpushare'
      };
    case 'forbidden':
      return {
        title: trans.__('You do not have permission to see the GPU'),
        text: trans.__(
          'Ask the administrator of this server for permission to read "gpushare".'
        )
      };
    case 'other_version':
      return {
        title: trans.__('Version mismatch'),
        text: trans.__(
          'The page and the server have different versions. Reload the page; if that does not help, restart the Jupyter server.'
        )
      };
    case 'server_unreachable':
      return {
        title: trans.__('The Jupyter server is not responding'),
        text: trans.__('This information may be out of date. Reconnecting…')
      };
    default:
      return {
        title: trans.__('The GPU is not shared'),
        text: text(params, 'error') || codeText(code, trans)
      };
  }
}

/** The active notebook. */
export function thisNotebook(trans: ITranslation): string {
  return trans.__('This notebook');
}

// SPDX-License-Identifier: BSD-3-Clause
import type { ICode, IStatus, IUnshared } from '../core/status';
import type { ITranslation } from '../core/translation';
import { text } from './params';

/** Why there is nothing to see, or not all. */
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

/** What is shown when all is well and nobody is there. */
export function nobodyText(trans: ITranslation): IExplanation {
  return {
    title: trans.__('Nobody uses the GPU yet'),
    text: trans.__(
      'Run a cell that uses CUDA: its notebook will appear here, and others will wait their turn when memory is short.'
    )
  };
}

/** What is shown when the driver has no GPU. */
export function noGpuText(trans: ITranslation): IExplanation {
  return {
    title: trans.__('No GPU was found'),
    text: trans.__(
      'The NVIDIA driver is installed, but it shows no GPU. To see what is wrong, run:'
    ),
    command: 'gpushare doctor'
  };
}

/** A statement, and what to do about it. */
export interface IExplanation {
  title: string;
  text: string;
  /** Something to type, shown as code. */
  command?: string;
}

/** What a newer server says. */
function codeText(code: string, trans: ITranslation): string {
  return trans.__('The server says: %1', code);
}

/** Why a kernel of this server does not share the GPU, and what to do about it. */
export function unsharedText(
  name: string,
  { code, params }: Pick<IUnshared, 'code' | 'params'>,
  trans: ITranslation
): IExplanation {
  const title = trans.__('%1 does not share the GPU', name);
  switch (code) {
    case 'other_provisioner':
      return {
        title,
        text: trans.__(
          'Its kernel is started by the provisioner "%1", which its kernel specification names. Choose a kernel that does not.',
          text(params, 'provisioner')
        )
      };
    case 'opted_out':
      return {
        title,
        text: trans.__(
          'Its kernel was told not to: by "gpushare": {"enabled": false} in the kernelspec\'s metadata, by GpuShareProvisioner.enabled = False, or by GPUSHARE_DISABLE=1. Remove that, and restart the kernel.'
        )
      };
    case 'started_without_interposer':
      return {
        title,
        text: trans.__(
          'Its kernel did not start with GPU sharing, so it was started without. Restart the kernel to try again; what the server logs says why it failed.'
        )
      };
    case 'started_before':
      return {
        title,
        text: trans.__(
          'Its kernel was there before GPU sharing was. Restart the kernel.'
        )
      };
    default:
      return { title, text: codeText(code, trans) };
  }
}

/** Why nothing is shared, or is shared only in part; null if all is well. */
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
    case 'not_started':
      return {
        title: trans.__('GPU sharing did not start'),
        text: trans.__(
          '%1. Correct this and start Jupyter again. To check the installation, run:',
          text(params, 'error')
        ),
        command: 'gpushare doctor'
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
    case 'other_version':
      return {
        title: trans.__('The page and the server do not fit'),
        text: trans.__(
          'They are of different versions. Reload the page; if that does not help, start the Jupyter server again.'
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
        text: text(params, 'error') || codeText(code, trans)
      };
  }
}

/** The notebook in front. */
export function thisNotebook(trans: ITranslation): string {
  return trans.__('This notebook');
}

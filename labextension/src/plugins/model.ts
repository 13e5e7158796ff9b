// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';

import { GpuShareModel } from '../state/model';
import { DEFAULTS, followPreferences } from '../state/preferences';
import { IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const modelPlugin: JupyterFrontEndPlugin<IGpuShareModel> = {
  id: 'jupyter-gpushare:plugin',
  description: 'Keeps the state of the shared GPUs up to date.',
  autoStart: true,
  provides: IGpuShareModel,
  optional: [ISettingRegistry, ITranslator],
  activate: async (
    app: JupyterFrontEnd,
    settings: ISettingRegistry | null,
    translator: ITranslator | null
  ): Promise<IGpuShareModel> => {
    const { serverSettings, events, connectionFailure } = app.serviceManager;
    const model = lifetime.add(
      new GpuShareModel({
        serverSettings,
        events,
        connectionFailure,
        preferences: DEFAULTS,
        trans: load(translator)
      })
    );
    if (settings) {
      try {
        lifetime.add(
          await followPreferences(settings, modelPlugin.id, preferences => {
            model.preferences = preferences;
          })
        );
      } catch (error) {
        // Invalid settings must not prevent the panel from loading.
        console.error('The settings of GPU sharing could not be read.', error);
      }
    }
    return model;
  },
  deactivate: lifetime.end
};

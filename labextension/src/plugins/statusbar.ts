// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';

import { StatusItem } from '../statusbar/item';
import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:status-bar',
  description: 'Shows the GPU state of the notebook in the status bar.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    if (!statusBar) {
      return;
    }
    const item = lifetime.add(
      new StatusItem({
        model,
        documents,
        commands: app.commands,
        trans: load(translator)
      })
    );
    lifetime.add(
      statusBar.registerStatusItem(statusBarPlugin.id, {
        item,
        align: 'left',
        rank: 3,
        // Kept in a narrow status bar, because a waiting cell matters more than its line number.
        priority: 1,
        isActive: () => item.wanted,
        activeStateChanged: item.wantedChanged
      })
    );
  },
  deactivate: lifetime.end
};

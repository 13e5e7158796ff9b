// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { ITranslator } from '@jupyterlab/translation';
import { DisposableDelegate } from '@lumino/disposable';

import { addPageCommand } from '../actions/page';
import { GpuSharePanel } from '../panel/sidebar';
import { CommandIds, IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'Adds the GPU sharing panel to the sidebar.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const { commands, shell } = app;
    const trans = load(translator);
    const panel = lifetime.add(
      new GpuSharePanel({
        model,
        documents,
        commands,
        trans,
        load: async () =>
          (await import(/* webpackChunkName: "panel" */ '../panel'))
            .PanelContent
      })
    );
    let side: string | null = null;
    const place = (): void => {
      if (side !== model.preferences.side) {
        side = model.preferences.side;
        if (!Array.from(shell.widgets(side)).includes(panel)) {
          shell.add(panel, side, { rank: 600, type: 'GPU sharing' });
        }
      }
    };
    place();
    model.changed.connect(place);
    lifetime.add(
      new DisposableDelegate(() => {
        model.changed.disconnect(place);
      })
    );
    restorer?.add(panel, panel.id);
    void app.restored.then(() => {
      // The restored layout can be older than the setting of the side.
      side = null;
      place();
    });
    lifetime.add(
      addPageCommand({
        commands,
        model,
        trans,
        command: CommandIds.openPanel,
        execute: () => shell.activateById(panel.id)
      })
    );
  },
  deactivate: lifetime.end
};

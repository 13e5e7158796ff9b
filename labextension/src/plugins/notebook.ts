// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';

import { ToolbarSlots } from '../notebook/slot';
import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const notebookPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:notebook',
  description:
    'Shows the GPU state of each notebook in its toolbar and below its cells.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [INotebookTracker, IToolbarWidgetRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    notebooks: INotebookTracker | null,
    toolbars: IToolbarWidgetRegistry | null,
    translator: ITranslator | null
  ): void => {
    if (!notebooks) {
      return;
    }
    const slots = new ToolbarSlots();
    toolbars?.addFactory<NotebookPanel>('Notebook', 'gpushare', panel =>
      slots.add(panel)
    );
    // Notebooks show nothing until a kernel uses the GPU.
    let look: IDisposable | null = null;
    const update = (): void => {
      if (notebooks.size > 0) {
        look ??= model.look();
      } else {
        look?.dispose();
        look = null;
      }
      const { groups = [], unshared = [] } = model.status ?? {};
      if (notebooks.size > 0 && groups.length + unshared.length > 0) {
        model.changed.disconnect(update);
        notebooks.widgetAdded.disconnect(update);
        import(/* webpackChunkName: "notebooks" */ '../notebook')
          .then(({ NotebookParts }) => {
            const { commands } = app;
            const trans = load(translator);
            const options = { model, documents, commands, trans, slots };
            lifetime.add(new NotebookParts(options)).connect(notebooks);
          })
          .catch((error: unknown) => {
            console.error(error);
            // Loading is tried again when the next notebook is opened.
            notebooks.widgetAdded.connect(update);
          })
          .finally(() => {
            look?.dispose();
            look = null;
          });
      }
    };
    model.changed.connect(update);
    notebooks.widgetAdded.connect(update);
    lifetime.add(
      new DisposableDelegate(() => {
        model.changed.disconnect(update);
        notebooks.widgetAdded.disconnect(update);
        look?.dispose();
      })
    );
    update();
  },
  deactivate: lifetime.end
};

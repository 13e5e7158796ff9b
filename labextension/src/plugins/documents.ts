// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import { DisposableDelegate } from '@lumino/disposable';

import { Documents } from '../state/documents';
import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const documentsPlugin: JupyterFrontEndPlugin<IDocuments> = {
  id: 'jupyter-gpushare:documents',
  description: 'Tracks which notebooks and consoles use the GPU.',
  autoStart: true,
  provides: IDocuments,
  requires: [IGpuShareModel],
  optional: [INotebookTracker, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): IDocuments => {
    const { sessions, kernelspecs } = app.serviceManager;
    const documents = lifetime.add(
      new Documents({
        model,
        sessions,
        kernelspecs,
        shell: app.shell,
        notebooks,
        consoles,
        trans: load(translator)
      })
    );
    // Pages of servers that share no GPU do not load it.
    const report = (): void => {
      if (model.status?.availability.code === 'ok') {
        stop();
        import(/* webpackChunkName: "focus" */ '../state/focus')
          .then(({ FocusReporter }) => {
            lifetime.add(new FocusReporter(model, documents));
          })
          .catch((error: unknown) => {
            console.error(error);
            // Loading is tried again when another document becomes active.
            documents.changed.connect(report);
          });
      }
    };
    const stop = (): void => {
      model.changed.disconnect(report);
      documents.changed.disconnect(report);
    };
    model.changed.connect(report);
    lifetime.add(new DisposableDelegate(stop));
    return documents;
  },
  deactivate: lifetime.end
};

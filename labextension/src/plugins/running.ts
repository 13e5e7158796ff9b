// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  IRunningSessionManagers,
  IRunningSessionSidebar
} from '@jupyterlab/running';
import { ITranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const runningPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:running',
  description:
    'Lists the kernels that use the GPU in the sidebar of running terminals and kernels.',
  autoStart: true,
  requires: [IGpuShareModel, IDocuments],
  optional: [IRunningSessionManagers, IRunningSessionSidebar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    documents: IDocuments,
    managers: IRunningSessionManagers | null,
    sidebar: IRunningSessionSidebar | null,
    translator: ITranslator | null
  ): void => {
    // Notebook 7 does not have this sidebar.
    if (!managers || !(sidebar instanceof Widget)) {
      return;
    }
    let look: IDisposable | null = null;
    let isLoaded = false;
    const update = (): void => {
      if (!sidebar.isVisible) {
        look?.dispose();
        look = null;
        return;
      }
      look ??= model.look();
      if (!isLoaded) {
        isLoaded = true;
        import(/* webpackChunkName: "running" */ '../running')
          .then(({ GpuSection }) => {
            const { commands, serviceManager } = app;
            const { kernels } = serviceManager;
            const trans = load(translator);
            const section = lifetime.add(
              new GpuSection({ model, documents, kernels, commands, trans })
            );
            lifetime.add(managers.add(section));
          })
          .catch((error: unknown) => {
            console.error(error);
            // Loading is tried again when the sidebar is shown again.
            isLoaded = false;
          });
      }
    };
    const onMessage = (): boolean => {
      // The sidebar handles the message after this.
      queueMicrotask(update);
      return true;
    };
    MessageLoop.installMessageHook(sidebar, onMessage);
    lifetime.add(
      new DisposableDelegate(() => {
        MessageLoop.removeMessageHook(sidebar, onMessage);
        look?.dispose();
      })
    );
    update();
  },
  deactivate: lifetime.end
};

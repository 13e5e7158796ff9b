// SPDX-License-Identifier: BSD-3-Clause
/** The Hub page (docs/how-to/admin/hub-page.md). It shows the data of the service, and sends actions to it. */
import React from 'react';
import { createPortal } from 'react-dom';
import { createRoot } from 'react-dom/client';

import type { Question } from './dialogs';
import { Dialog } from './dialogs';
import { Service } from './service';
import type { Link } from './store';
import { Store, useStore } from './store';
import { TEXT } from './text';
import { Gpus } from './views/gpus';
import { History } from './views/history';
import { Usage } from './views/usage';
import { Users } from './views/users';

type View = keyof typeof TEXT.views;

/** An element of `page.html`. */
function elementOf(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) {
    throw new Error(`The page has no element ${id}.`);
  }
  return element;
}

const main = elementOf('main');
const links = elementOf('views');
const link = elementOf('link');
const done = elementOf('done');
const failed = elementOf('failed');

function chosenView(): View {
  const name = location.hash.slice(1);
  return name in TEXT.views ? (name as View) : 'gpus';
}

/** The view in the fragment of the URL. */
function useView(): View {
  return React.useSyncExternalStore(listener => {
    window.addEventListener('hashchange', listener);
    return () => window.removeEventListener('hashchange', listener);
  }, chosenView);
}

interface IPageProps {
  store: Store;
  service: Service;
}

function Page({ store, service }: IPageProps): JSX.Element {
  const state = useStore(store);
  const view = useView();
  const [filter, setFilter] = React.useState('');
  const [question, ask] = React.useState<Question | null>(null);
  useLink(state.link);
  const context = { state, service, ask };
  return (
    <>
      {createPortal(<Views view={view} />, links)}
      {createPortal(state.outcome.isFailure ? '' : state.outcome.text, done)}
      {createPortal(state.outcome.isFailure ? state.outcome.text : '', failed)}
      {state.isReady && view === 'gpus' && (
        <Gpus {...context} filter={filter} setFilter={setFilter} />
      )}
      {state.isReady && view === 'users' && <Users state={state} />}
      {state.isReady && view === 'usage' && (
        <Usage state={state} service={service} />
      )}
      {state.isReady && view === 'history' && <History state={state} />}
      {question && (
        <Dialog
          question={question}
          service={service}
          onClose={() => ask(null)}
        />
      )}
    </>
  );
}

function Views({ view }: { view: View }): JSX.Element {
  return (
    <>
      {Object.entries(TEXT.views).map(([name, text]) => (
        <a
          key={name}
          href={`#${name}`}
          aria-current={name === view ? 'page' : undefined}
        >
          {text}
        </a>
      ))}
    </>
  );
}

/** Show the state of the connection to the service; the style sheets use it, too. */
function useLink(state: Link): void {
  React.useLayoutEffect(() => {
    const shown = state === 'over' ? 'bad' : state;
    document.body.dataset['link'] = link.dataset['state'] = shown;
    link.textContent = TEXT.link[state];
  }, [state]);
}

const store = new Store();
const service = new Service(store);
createRoot(main).render(<Page store={store} service={service} />);
service.listen();

// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';
import { createPortal } from 'react-dom';

import { isolate } from '../../labextension/src/words/mentions';
import type { IGpu, IHead, INotebook, IReport } from './messages';
import type { Service } from './service';
import { nameOf, TEXT } from './text';

type Node = IHead & IReport;

/** An action that the administrator has to choose or confirm in a dialog. */
export type Question =
  | { kind: 'act'; notebook: INotebook; node: Node }
  | { kind: 'drain'; gpu: IGpu; node: Node }
  | { kind: 'message'; node: Node };

interface IDialogProps {
  question: Question;
  service: Service;
  onClose: () => void;
}

/** The dialog of a question. */
export function Dialog(props: IDialogProps): JSX.Element {
  const { question, service, onClose } = props;
  switch (question.kind) {
    case 'act':
      return <ActDialog {...question} service={service} onClose={onClose} />;
    case 'drain':
      return <DrainDialog {...question} service={service} onClose={onClose} />;
    case 'message':
      return (
        <MessageDialog {...question} service={service} onClose={onClose} />
      );
  }
}

interface IModalProps {
  title: string;
  onClose: () => void;
  children: React.ReactNode;
}

/** A modal dialog. It closes with Escape, and the focus returns to the previous element. */
function Modal({ title, onClose, children }: IModalProps): JSX.Element {
  const dialog = React.useRef<HTMLDialogElement>(null);
  React.useLayoutEffect(() => {
    dialog.current?.showModal();
  }, []);
  return createPortal(
    <dialog ref={dialog} aria-labelledby="question" onClose={onClose}>
      <h2 id="question">{title}</h2>
      {children}
    </dialog>,
    document.body
  );
}

interface IButtonProps {
  className?: string;
  act?: () => void;
  children: React.ReactNode;
}

/** A button that closes its dialog and then acts. */
function Button({ className, act, children }: IButtonProps): JSX.Element {
  return (
    <button
      type="button"
      className={className}
      onClick={({ currentTarget }) => {
        currentTarget.closest('dialog')?.close();
        act?.();
      }}
    >
      {children}
    </button>
  );
}

function Buttons({ children }: { children?: React.ReactNode }): JSX.Element {
  return (
    <div className="buttons">
      <Button>{TEXT.cancel}</Button>
      {children}
    </div>
  );
}

interface IAskProps {
  node: Node;
  service: Service;
  onClose: () => void;
}

function ActDialog(props: IAskProps & { notebook: INotebook }): JSX.Element {
  const { notebook, node, service, onClose } = props;
  const name = nameOf(notebook.name);
  const group = notebook.id;
  const choices = [
    { words: TEXT.act.release, op: 'release', body: { group } },
    { words: TEXT.act.evict, op: 'evict', body: { group } },
    notebook.on_hold
      ? { words: TEXT.act.unhold, op: 'hold', body: { group, on: false } }
      : { words: TEXT.act.hold, op: 'hold', body: { group, on: true } }
  ];
  return (
    <Modal
      title={TEXT.act.title(name, isolate(notebook.user))}
      onClose={onClose}
    >
      <div className="choices">
        {choices.map(({ words, op, body }) => (
          <Button
            key={words.label}
            className="choice"
            act={() => void service.act(node.name, op, body, words.done(name))}
          >
            <b>{words.label}</b>
            <span>{words.hint}</span>
          </Button>
        ))}
      </div>
      <Buttons />
    </Modal>
  );
}

function DrainDialog(props: IAskProps & { gpu: IGpu }): JSX.Element {
  const { gpu, node, service, onClose } = props;
  const there = node.notebooks.filter(({ gpus }) => gpus.includes(gpu.index));
  const waiting = there.filter(({ state }) => state === 'waiting').length;
  return (
    <Modal title={TEXT.drainTitle(gpu, node.name)} onClose={onClose}>
      <p>{TEXT.drainHint(there.length, waiting)}</p>
      <Buttons>
        <Button
          className="do"
          act={() =>
            void service.act(
              node.name,
              'drain',
              { gpu: gpu.uuid, on: true },
              TEXT.drained(gpu, node.name)
            )
          }
        >
          {TEXT.drainDo}
        </Button>
      </Buttons>
    </Modal>
  );
}

function MessageDialog({ node, service, onClose }: IAskProps): JSX.Element {
  const input = React.useRef<HTMLTextAreaElement>(null);
  React.useEffect(() => input.current?.focus(), []);
  const send = (text: string): void =>
    void service.act(
      node.name,
      'maintenance',
      { text },
      text ? TEXT.maintained : TEXT.unmaintained
    );
  return (
    <Modal title={TEXT.maintenanceTitle(node.name)} onClose={onClose}>
      <label>
        {TEXT.maintenanceLabel}
        <textarea
          ref={input}
          rows={3}
          maxLength={500}
          defaultValue={node.maintenance}
        />
      </label>
      <Buttons>
        {node.maintenance && (
          <Button act={() => send('')}>{TEXT.maintenanceEnd}</Button>
        )}
        <Button
          className="do"
          act={() => send(input.current?.value.trim() ?? '')}
        >
          {TEXT.maintenanceDo}
        </Button>
      </Buttons>
    </Modal>
  );
}

// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';
import { settingsIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ISignal } from '@lumino/signaling';
import React from 'react';

import { run } from '../actions/table';
import { listNames, shortestNames } from '../state/documents';
import { formatBytes } from '../core/format';
import type { ICode, IGpu, IGroup, IStatus, IUnshared } from '../core/status';
import { showsBackground } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import type { IExplanation } from '../words/sentences';
import type { IWording, Names } from '../words/short';
import { unsharedText } from '../words/sentences';
import { isolate, linkText, printable, shortName } from '../words/short';
import { Boundary } from './boundary';
import { Clock } from './clock';
import { Gpu, Mode } from './gpu';
import { Name } from '../components/name';
import { assignColours } from '../core/palette';
import { Timeline } from './timeline/picture';
import type { IRowContext } from './row';
import { Row } from './row';
import type { IGroupShare } from './view';
import {
  announce,
  explain,
  firstRows,
  isResidue,
  makeSections,
  makeShares,
  noticesOf,
  noticeText,
  restsSince
} from './view';

/** Rows of a section that is not shown whole. */
const ROWS = 8;

const NO_SHARES: readonly IGroupShare[] = [];

const SETTINGS_COMMAND = 'settingeditor:open';

export interface IPanelProps {
  model: IGpuShareModel;
  commands: CommandRegistry;
  trans: TranslationBundle;
  /** What the groups are called, by their ids. */
  names: (status: IStatus) => Names;
  /** The id of the group of the notebook in front. */
  currentGroup: () => string | null;
  /** Emitted when another document came to the front, or one got another name. */
  changed?: ISignal<unknown, unknown>;
}

/** The content of the panel: who has the GPU, who waits and why, and where the memory is. */
export function PanelContent(props: IPanelProps): JSX.Element {
  const { model, commands, trans, changed } = props;
  const root = React.useRef<HTMLDivElement>(null);
  const clock = React.useMemo(() => new Clock(model), [model]);
  const visible = useVisible(root);
  const [fronts, redraw] = React.useReducer((count: number) => count + 1, 0);
  const status = useStatus(model, clock, visible);
  const keptFocus = useKeptFocus();

  React.useEffect(() => {
    changed?.connect(redraw);
    return () => {
      changed?.disconnect(redraw);
    };
  }, [changed]);

  const counts =
    visible &&
    status !== null &&
    status.availability.code !== 'server_unreachable' &&
    (status.groups.length > 0 || (status.timeline?.spans.length ?? 0) > 0);
  React.useEffect(() => {
    clock.running = counts;
    return () => {
      clock.running = false;
    };
  }, [clock, counts]);

  return (
    <div className="jp-GpuSharePanel" ref={root}>
      <Header
        availability={status?.availability ?? null}
        commands={commands}
        trans={trans}
      />
      <div className="jp-GpuShare-body" {...keptFocus}>
        {status === null ? (
          <p className="jp-GpuShare-quiet">{trans.__('Loading…')}</p>
        ) : (
          <Boundary trans={trans}>
            <Body {...props} status={status} clock={clock} fronts={fronts} />
          </Boundary>
        )}
      </div>
    </div>
  );
}

/** The last status; while nobody sees the panel, it keeps the one that it has. */
function useStatus(
  model: IGpuShareModel,
  clock: Clock,
  visible: boolean
): IStatus | null {
  const shown = React.useRef({ status: model.status });
  const subscribe = React.useCallback(
    (redraw: () => void): (() => void) => {
      if (!visible) {
        return () => undefined;
      }
      // As the clock's texts it comes from a store: React draws both at once.
      const update = (): void => {
        // Another object even for the same status: the preferences may have changed.
        shown.current = { status: model.status };
        clock.update();
        redraw();
      };
      update();
      model.changed.connect(update);
      return () => {
        model.changed.disconnect(update);
      };
    },
    [model, clock, visible]
  );
  return React.useSyncExternalStore(subscribe, () => shown.current).status;
}

/** Whether a person could see the element now. */
function useVisible(element: React.RefObject<Element>): boolean {
  const [inView, setInView] = React.useState(true);
  const [inFront, setInFront] = React.useState(!document.hidden);
  React.useEffect(() => {
    const update = (): void => setInFront(!document.hidden);
    const observer = new IntersectionObserver(entries =>
      setInView(entries[entries.length - 1]?.isIntersecting ?? true)
    );
    if (element.current) {
      observer.observe(element.current);
    }
    document.addEventListener('visibilitychange', update);
    return () => {
      observer.disconnect();
      document.removeEventListener('visibilitychange', update);
    };
  }, [element]);
  return inView && inFront;
}

interface IHeaderProps {
  availability: ICode | null;
  commands: CommandRegistry;
  trans: TranslationBundle;
}

function Head(props: IHeaderProps): JSX.Element {
  const { availability, commands, trans } = props;
  const link = availability && linkText(availability, trans);
  const label = trans.__('Settings of GPU sharing');
  return (
    <div className="jp-GpuShare-title">
      <h2>{trans.__('GPU sharing')}</h2>
      {link && (
        <span className="jp-GpuShare-link" data-state={link.state}>
          {link.text}
        </span>
      )}
      {commands.hasCommand(SETTINGS_COMMAND) && (
        <button
          type="button"
          className="jp-GpuShare-icon"
          title={label}
          aria-label={label}
          onClick={() =>
            run(commands, {
              command: SETTINGS_COMMAND,
              args: { query: 'GPU sharing' }
            })
          }
        >
          <settingsIcon.react tag="span" />
        </button>
      )}
    </div>
  );
}

const Header = React.memo(Head);

interface IBodyProps extends IPanelProps {
  status: IStatus;
  clock: Clock;
  /** How often another document came to the front. */
  fronts: number;
}

function Body(props: IBodyProps): JSX.Element {
  const { model, commands, trans, status, clock } = props;
  const names = props.names(status);
  const { units, history } = model.preferences;
  const { settings, hibernation, may, timeline } = status;
  const wording = React.useMemo<IWording>(
    () => ({ trans, units, names }),
    [trans, units, names]
  );
  const gpus = useNumbers(status.gpus);
  const context = React.useMemo<IRowContext>(
    () => ({
      wording,
      model,
      commands,
      clock,
      settings,
      gpus,
      mayAdjust: may.adjust
    }),
    [wording, model, commands, clock, settings, gpus, may.adjust]
  );
  const colours = useColours(status);
  const shares = useShares(status.groups);
  const current = props.currentGroup();
  const several = status.gpus.length > 1;
  // Several GPUs take much room: this notebook and the queue come before them.
  const first = several ? current : null;
  const sections = React.useMemo(
    () => makeSections(status.groups.filter(({ id }) => id !== first)),
    [status.groups, first]
  );
  const explanation = explain(status, trans);
  const nameOf = (id: string): string => names.get(id) ?? shortName(id);
  const mode = settings && (
    <Mode
      settings={settings}
      hibernation={hibernation}
      may={may.settings}
      commands={commands}
      wording={wording}
    />
  );
  const section = { context, colours, current, all: status.groups };
  const notices = noticesOf(status).map(notice => (
    <p key={`${notice.group} ${notice.code}`} className="jp-GpuShare-notice">
      {noticeText(isolate(nameOf(notice.group)), notice, trans)}
    </p>
  ));
  const running = (
    <Section
      {...section}
      id="running"
      label={trans.__('Running')}
      groups={sections.running}
    />
  );
  const waiting = (
    <Section
      {...section}
      id="waiting"
      label={trans.__('Waiting')}
      groups={sections.waiting}
    />
  );
  const gpuBlocks = status.gpus.map(gpu => (
    <Gpu
      key={gpu.uuid}
      gpu={gpu}
      several={several}
      restsSince={restsSince(gpu, status.groups)}
      shares={shares.get(gpu.uuid) ?? NO_SHARES}
      host={status.host}
      samples={timeline?.samples}
      colours={colours}
      wording={wording}
      clock={clock}
      seconds={60 * history}
    >
      {!several && mode}
    </Gpu>
  ));
  return (
    <>
      {explanation && <Explanation {...explanation} />}
      {several ? (
        <>
          {notices}
          <Section
            {...section}
            id="current"
            label={trans.__('This notebook')}
            groups={status.groups.filter(({ id }) => id === first)}
          />
          {waiting}
          {running}
          {mode && (
            <div className="jp-GpuShare-allGpus">
              <span>{trans.__('All GPUs')}</span>
              {mode}
            </div>
          )}
          {gpuBlocks}
        </>
      ) : (
        <>
          {gpuBlocks}
          {notices}
          {running}
          {waiting}
        </>
      )}
      <Section
        {...section}
        id="idle"
        label={trans.__('Idle')}
        groups={sections.idle}
      />
      <OtherPrograms status={status} shares={shares} wording={wording} />
      <NotSharing unshared={status.unshared} trans={trans} />
      {timeline && status.gpus.length > 0 && (
        <Timeline
          timeline={timeline}
          colours={colours}
          wording={wording}
          clock={clock}
          minutes={history}
        />
      )}
      <Announcement
        group={status.groups.find(group => group.id === current) ?? null}
        nameOf={nameOf}
        fronts={props.fronts}
        trans={trans}
      />
    </>
  );
}

/** The colours of all that have memory or a lane; each keeps its own while it stays. */
function useColours({
  groups,
  timeline
}: IStatus): ReadonlyMap<string, number> {
  const before = React.useRef<ReadonlyMap<string, number>>(new Map());
  const ids = new Set(groups.map(group => group.id));
  const gone = new Set(
    timeline?.spans.map(span => span.group).filter(id => !ids.has(id))
  );
  if (
    ids.size + gone.size !== before.current.size ||
    [...ids, ...gone].some(id => !before.current.has(id))
  ) {
    before.current = assignColours(before.current, [...ids], [...gone]);
  }
  return before.current;
}

/** What the groups have on each GPU; the same arrays while that is the same. */
function useShares(groups: IGroup[]): ReadonlyMap<string, IGroupShare[]> {
  const before = React.useRef<ReadonlyMap<string, IGroupShare[]>>(new Map());
  before.current = React.useMemo(
    () => makeShares(groups, before.current),
    [groups]
  );
  return before.current;
}

/** The numbers of several GPUs; the same object while they are the same GPUs. */
function useNumbers(gpus: IGpu[]): ReadonlyMap<string, number> | null {
  const key = gpus.map(({ uuid, index }) => `${index} ${uuid}`).join();
  return React.useMemo(
    () =>
      gpus.length > 1
        ? new Map(gpus.map(({ uuid, index }) => [uuid, index]))
        : null,
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [key]
  );
}

/**
 * Keep the focus with a notebook whose button goes away under it: one that was released
 * goes to another section, and nobody should have to look for it from the top of the page.
 */
function useKeptFocus(): Pick<
  React.HTMLAttributes<HTMLElement>,
  'onFocus' | 'onBlur'
> {
  const focused = React.useRef<HTMLElement | null>(null);
  const group = React.useRef('');
  const body = React.useRef<HTMLElement | null>(null);
  React.useLayoutEffect(() => {
    if (focused.current && !focused.current.isConnected) {
      focused.current = null;
      const rows = body.current?.querySelectorAll<HTMLElement>('li') ?? [];
      [...rows]
        .find(row => row.dataset['group'] === group.current)
        ?.querySelector<HTMLElement>('[aria-haspopup]')
        ?.focus();
    }
  });
  return {
    onFocus: ({ target, currentTarget }) => {
      const row = target.closest('li');
      body.current = currentTarget;
      focused.current = row ? target : null;
      group.current = row?.dataset['group'] ?? '';
    },
    onBlur: ({ target }) => {
      // What is removed may say that it lost the focus before it is gone.
      window.setTimeout(() => {
        if (focused.current === target && target.isConnected) {
          focused.current = null;
        }
      });
    }
  };
}

function Explanation({ title, text, command }: IExplanation): JSX.Element {
  return (
    <div className="jp-GpuShare-explanation">
      <h3>{title}</h3>
      <p>{text}</p>
      {command && <code>{command}</code>}
    </div>
  );
}

interface IListProps<T> {
  id: string;
  label: string;
  items: readonly T[];
  /** Those that are shown until somebody wants to see all. */
  few: readonly T[];
  draw: (item: T) => JSX.Element;
  trans: TranslationBundle;
}

/** A section whose rows are not all shown at first; no section without rows. */
function List<T>(props: IListProps<T>): JSX.Element | null {
  const { id, label, items, few, draw, trans } = props;
  const [all, setAll] = React.useState(false);
  if (items.length === 0) {
    return null;
  }
  const heading = `jp-GpuShare-${id}`;
  return (
    <section className="jp-GpuShare-section" aria-labelledby={heading}>
      <h3 id={heading}>
        {label} <small>{items.length}</small>
      </h3>
      <ul role="list" id={`${heading}-list`}>
        {(all ? items : few).map(draw)}
      </ul>
      {few.length < items.length && (
        <button
          type="button"
          className="jp-GpuShare-more"
          aria-expanded={all}
          aria-controls={`${heading}-list`}
          onClick={() => setAll(!all)}
        >
          {all ? trans.__('Show fewer') : trans.__('Show all %1', items.length)}
        </button>
      )}
    </section>
  );
}

interface ISectionProps {
  id: string;
  label: string;
  groups: IGroup[];
  context: IRowContext;
  /** Those of the other sections, too. */
  all: readonly IGroup[];
  colours: ReadonlyMap<string, number>;
  current: string | null;
}

function Section(props: ISectionProps): JSX.Element {
  const { id, label, groups, context, all, colours, current } = props;
  const { trans, names } = context.wording;
  return (
    <List
      id={id}
      label={label}
      items={groups}
      few={firstRows(groups, ROWS, current)}
      trans={trans}
      draw={group => (
        <Row
          key={group.id}
          group={group}
          name={names.get(group.id) ?? shortName(group.name)}
          colour={colours.get(group.id) ?? 0}
          current={group.id === current}
          background={showsBackground(group, all)}
          context={context}
        />
      )}
    />
  );
}

interface IOtherProgramsProps {
  status: IStatus;
  shares: ReadonlyMap<string, readonly IGroupShare[]>;
  wording: IWording;
}

/** What is on the GPUs without us. */
function OtherPrograms(props: IOtherProgramsProps): JSX.Element | null {
  const { status, shares, wording } = props;
  const { trans, units } = wording;
  const gpus = status.gpus.filter(
    gpu => !isResidue(gpu, shares.get(gpu.uuid) ?? NO_SHARES)
  );
  if (gpus.length === 0) {
    return null;
  }
  return (
    <section
      className="jp-GpuShare-section"
      aria-labelledby="jp-GpuShare-foreign"
    >
      <h3 id="jp-GpuShare-foreign">{trans.__('Other programs')}</h3>
      <ul role="list">
        {gpus.map(gpu => (
          <li key={gpu.uuid} className="jp-GpuShare-row">
            <span className="jp-GpuShare-key" data-part="foreign" />
            <div className="jp-GpuShare-name">
              <span>{trans.__('outside the sharing')}</span>
            </div>
            <div className="jp-GpuShare-figure">
              {formatBytes(gpu.foreign, units)}
            </div>
            <div className="jp-GpuShare-detail">
              {status.gpus.length > 1
                ? trans.__('on GPU %1; cannot be moved', gpu.index)
                : trans.__('cannot be moved')}
            </div>
          </li>
        ))}
      </ul>
      <p className="jp-GpuShare-detail">
        {trans.__(
          'Kernels that papermill, nbconvert, VS Code or jupyter console start can share the GPU, too. Make a kernelspec for them with: gpushare kernelspec add shared'
        )}
      </p>
    </section>
  );
}

interface INotSharingProps {
  unshared: IUnshared[];
  trans: TranslationBundle;
}

/** Kernels of this server that use the GPU without taking turns, and what to do about it. */
function NotSharing({ unshared, trans }: INotSharingProps): JSX.Element {
  const short = shortestNames(
    new Set(
      unshared.flatMap(({ sessions }) => sessions.map(({ path }) => path))
    )
  );
  return (
    <List
      id="unshared"
      label={trans.__('Not sharing')}
      items={unshared}
      few={unshared.slice(0, ROWS)}
      trans={trans}
      draw={kernel => {
        const name =
          listNames(
            kernel.sessions.map(session =>
              session.type === 'console'
                ? printable(session.name)
                : (short.get(session.path) ?? printable(session.name))
            ),
            trans
          ) || trans.__('kernel %1', kernel.kernel_id.slice(0, 8));
        const { title, text } = unsharedText(name, kernel, trans);
        return (
          <li key={kernel.kernel_id} className="jp-GpuShare-row">
            <span className="jp-GpuShare-swatch" data-empty="true" />
            <div className="jp-GpuShare-name">
              <span title={title}>
                <Name text={name} end={5} />
              </span>
            </div>
            <div className="jp-GpuShare-detail">{text}</div>
          </li>
        );
      }}
    />
  );
}

interface IAnnouncementProps {
  group: IGroup | null;
  nameOf: (id: string) => string;
  /** How often another document came to the front. */
  fronts: number;
  trans: TranslationBundle;
}

/**
 * Says aloud when the document in front goes from one state to another, and nothing else.
 *
 * A cell of a notebook says it itself, in its strip: nobody should hear it twice.
 */
function Announcement(props: IAnnouncementProps): JSX.Element {
  const { nameOf, fronts, trans } = props;
  const [said, say] = React.useState('');
  const before = React.useRef<number | null>(null);
  const inCell =
    props.group !== null &&
    props.group.cell !== null &&
    props.group.sessions.some(({ type }) => type === 'notebook');
  const group = inCell ? null : props.group;
  const text = group ? announce(group, nameOf(group.id), trans) : '';
  // A queue that moves on, or a new name, is no change of state.
  const state = group ? announce({ ...group, position: null }, '', trans) : '';
  React.useEffect(() => {
    if (before.current === fronts) {
      say(text);
    }
    // That a cell is over is no news either.
    before.current = inCell ? null : fronts;
    // The words are those of the moment of the change.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [fronts, state, inCell]);
  return (
    <div className="jp-GpuShare-announcement" role="status">
      {said}
    </div>
  );
}

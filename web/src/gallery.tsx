// Pictures and sounds, in the field and in the conversation.
import { useRef } from "preact/hooks";
import { IconButton } from "./icons.tsx";
import { useUrl } from "./media.ts";
import { t } from "./text.ts";
import type { Media } from "./types.ts";

function Picture({ m }: { m: Media }) {
  const url = useUrl(m.id);
  const dialog = useRef<HTMLDialogElement>(null);
  const img = () => url && <img src={url} alt={m.name} width={m.width} height={m.height} />;
  return (
    <>
      <button type="button" class="picture" aria-label={t("Show {0}", m.name)} title={`${m.name} · ${m.width} × ${m.height}`}
        onClick={() => dialog.current!.showModal()}>{img()}</button>
      <dialog ref={dialog} class="viewer" aria-label={m.name} onClick={() => dialog.current!.close()}
        onKeyDown={(e) => e.stopPropagation()}>
        <IconButton icon="close" label={t("Close")} />
        {img()}
      </dialog>
    </>
  );
}

function Sound({ m }: { m: Media }) {
  const url = useUrl(m.id);
  return <span class="sound"><span>{m.name}</span>{url && <audio controls src={url} aria-label={m.name} />}</span>;
}

export const MediaView = ({ m }: { m: Media }) => (m.kind === "image" ? <Picture m={m} /> : <Sound m={m} />);

export function Gallery({ list }: { list?: Media[] }) {
  if (!list?.length) return null;
  return <div class="gallery">{list.map((m) => <MediaView key={m.id} m={m} />)}</div>;
}

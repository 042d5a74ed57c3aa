// The records that the page keeps, and the API's answers as far as it reads them.

export interface ToolCall { id: string; name: string; arguments: string }

export interface Timings {
  prompt_n: number; prompt_ms?: number; cache_n?: number;
  predicted_n: number; predicted_ms?: number; predicted_per_second: number;
  energy_j?: number; energy_j_per_token?: number;
  speculation?: {
    accepted_length: number; accepted_per_pos?: number[]; accepted_per_pos_given_previous?: number[];
    draft_ms?: number; verify_ms?: number; sample_ms?: number;
  };
}

// One step of the model: its tokens, and the verified draft they came from.
export interface Step { tokens: string[]; drafter?: string; drafted?: number; accepted?: number; rejected?: string[] }
export interface TextFile { name: string; text: string }
export interface Usage { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { image_tokens?: number; audio_tokens?: number } }

// A picture or a sound of a message; its bytes lie in a database of their own (media.ts).
export interface Media { id: string; kind: "image" | "audio"; name: string; type: string; size: number; width?: number; height?: number }

// One message of a tree: siblings (the same parent) are versions of one another.
export interface Message {
  id: string; conversation: string; parent: string | null; created: number;
  role: "user" | "assistant" | "tool";
  content: string; thinking: string; tools: ToolCall[];
  files?: TextFile[];    // attached texts, sent before the content
  media?: Media[];       // pictures and sounds, sent before all text
  call?: string;         // a tool's result: of which call
  model?: string; timings?: Timings; usage?: Usage; finish?: string;
  steps?: Step[];
  used?: Settings;       // what it was asked with, and its seed
  seed?: number;
  begun?: { content: string; steps: number };  // what stood when it went on, where another version was continued
  firstMs?: number; thoughtMs?: number;
  stopped?: boolean;     // the reader stopped it
  cut?: boolean;         // the stream ended before the answer did
  error?: Fault;
  writer?: string;       // the tab that streams it now
  beat?: number;         // when that tab last said so
}

export type FaultKind = "key" | "away" | "long" | "busy" | "other";
export interface Fault { kind: FaultKind; text: string }

export interface Conversation {
  id: string; title: string; updated: number; head: string | null;
  deleted?: number;      // when; it can be restored for a short time
  folder?: string;
  settings?: Settings;   // this chat's own
}

export interface Settings {
  system: string; temperature: string; top_p: string; top_k: string; min_p: string; repeat_penalty: string;
  max_tokens: string; seed: string; thinking: string; tools: string; schema: string;
}

export interface Model {
  id: string; max_model_len?: number; status?: { value: string }; architecture?: { input_modalities?: string[] };
  meta?: { size?: number; n_ctx_train?: number; quantization_level?: string };
}

export interface Props {
  build_info?: string;
  default_generation_settings?: { n_ctx?: number; params?: Record<string, number> };
  kv_cache?: { k: string; v: string };
  drafters?: string[];
  modalities?: { vision?: boolean; audio?: boolean };
}

export interface Delta {
  content?: string | null; reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

export interface Odds { token: string; logprob: number; top_logprobs?: { token: string; logprob: number }[] }

export interface Chunk {
  choices?: { delta: Delta; finish_reason: string | null; logprobs?: { content?: Odds[] } | null }[];
  timings?: Timings; usage?: Usage; steps?: Step[];
  error?: { message: string };
}

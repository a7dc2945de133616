"""Faults that users of neighbouring tools met, and the tests that hold this library to the right behaviour.

Each row names a public thread (``owner/repository#number``) or, where there is none, the fault itself; the fault in our
own words; and tests, as pytest names them, of its whole kind. ``without`` says why a row has none, ``later`` what of it
comes with a part of the library that does not exist yet: its tests hold what is there until then.
"""

from typing import NamedTuple


class Hazard(NamedTuple):
    """A fault met elsewhere."""

    thread: str
    fault: str
    tests: tuple[str, ...]
    without: str = ""
    later: str = ""


_ACCOUNT = "tests/test_account.py::test_"
_ATTACH = "tests/test_attach.py::test_"
_COMPILED = "tests/hazards/test_compiled.py::test_"
_COMPRESS = "tests/test_compress.py::test_"
_GPU = "tests/hazards/test_gpu.py::test_"
_HOOKS = "tests/hazards/test_hooks.py::test_"
_NODES = "tests/test_nodes.py::test_"
_NUMBERS = "tests/hazards/test_numbers.py::test_"
_OFFLOAD = "tests/methods/test_offload.py::test_"
_OWNERS = "tests/hazards/test_owners.py::test_"
_SAVED = "tests/test_saved.py::test_"
_SEEDS = "tests/test_seeds.py::test_"
_SWEEP = "tests/rules/test_sweep.py::test_"
_TRAINING = "tests/hazards/test_training.py::test_"
_WRAPPERS = "tests/test_wrappers.py::test_"
_TWO_PROCESSES = "tests/test_distributed.py::test_two_processes_train_as_without_us"

_AUTOGRAD = (
    Hazard(
        "pytorch/pytorch#193671",
        "an op saves a tensor before it fills it, so that a copy made then is of nothing",
        (_HOOKS + "every_rule_holds_at_the_moment_a_node_is_made", _SWEEP + "every_op_with_exact_codes"),
    ),
    Hazard(
        "pytorch/pytorch#62717",
        "packing writes to its input, which is the forward's value",
        (_SAVED + "encoding_leaves_its_input_and_its_version_alone", "tests/codecs/test_contract.py::test_round_trip",
         "tests/codecs/test_contract.py::test_codes_do_not_depend_on_the_layout"),
    ),
    Hazard(
        "pytorch/pytorch#128611",
        "backward edits what it unpacked, and with it the original or the next reading",
        (_SAVED + "a_custom_function_may_change_what_it_unpacked",
         _SAVED + "every_unpack_gives_a_fresh_tensor_with_the_same_bits"),
    ),
    Hazard(
        "pytorch/pytorch#115255",
        "hooks opened inside a checkpoint take what it would recompute",
        (_NODES + "a_context_within_a_checkpoint_neither_codes_nor_defeats_it",
         "tests/test_soak.py::test_steps[walk-checkpointed-division]"),
    ),
    Hazard(
        "pytorch/pytorch#189025",
        "a hook that holds the live tensor makes a cycle that is never freed",
        (_SAVED + "a_graph_that_never_sees_backward_is_freed", _COMPRESS + "no_warning_and_no_garbage"),
    ),
    Hazard(
        "pytorch/pytorch#82156",
        "a saved tensor read twice in one backward",
        (_HOOKS + "every_reading_decodes_anew_to_the_same_bits",
         _SAVED + "custom_functions_are_left_until_a_rule_is_registered"),
    ),
    Hazard(
        "NVIDIA/cudnn-frontend#958",
        "a function inside a checkpoint that reads what it saved again and again",
        (_HOOKS + "a_function_that_reads_again_and_again_inside_a_checkpoint",),
    ),
    Hazard(
        "pytorch/pytorch#130734",
        "a context left from a hook or from unpacking brings the process down",
        (_HOOKS + "leaving_every_context_while_backward_runs_or_unpacks",
         _NODES + "a_tensor_hook_may_open_and_close_contexts"),
    ),
    Hazard(
        "pytorch/pytorch#63485",
        "a tensor subclass comes back as a plain tensor",
        (_HOOKS + "a_saved_subclass_comes_back_as_the_object_it_is", _SAVED + "subclasses_are_left_with_a_reason"),
    ),
    Hazard(
        "pytorch/pytorch#146036",
        "function transforms refuse to run, or are wrong, while hooks are active",
        (_NODES + "func_transforms_are_exact", _NODES + "per_sample_gradients_of_a_module_are_exact",
         _WRAPPERS + "functional_calls_and_transforms_under_division"),
    ),
    Hazard(
        "pytorch/pytorch#70134",
        "of nested hooks the innermost alone acts, and nothing says which",
        (_NODES + "the_inner_of_two_contexts_wins_and_the_outer_goes_on_after_it",
         _NODES + "saving_on_the_cpu_is_respected", _NODES + "other_hooks_are_called_as_without_us",
         _OFFLOAD + "gradients_are_those_of_the_method_itself"),
    ),
    Hazard(
        "pytorch/pytorch#84907",
        "around a checkpoint nothing is done, or everything is recomputed more than once",
        (_WRAPPERS + "checkpoints_recompute_as_often_and_nothing_is_coded_twice",
         _NODES + "checkpoints_recompute_once_and_nothing_in_them_is_coded"),
    ),
    Hazard(
        "pytorch/pytorch#191236",
        "what selective checkpoints keep reaches hooks in one release and not in the next",
        (_HOOKS + "selective_checkpoints_whatever_they_do_about_hooks",),
    ),
    Hazard(
        "pytorch/pytorch#64729",
        "odd layouts crash, and weights are compressed",
        (_HOOKS + "modulated_convolutions_with_a_gradient_penalty", _SAVED + "linear_and_conv_weights_are_never_coded",
         "tests/kernels/cpu/test_dual.py::test_touches_no_memory_beyond_its_tensors"),
    ),
    Hazard(
        "NVIDIA/Megatron-LM#613",
        "hooks that do nothing double the memory",
        (_HOOKS + "passing_everything_through_takes_no_more_memory_at_any_time", _SAVED + "nothing_grows_over_steps",
         _COMPRESS + "no_method_codes_nothing_and_reports_everything"),
    ),
    Hazard(
        "pytorch/pytorch#104040",
        "double backward through a function that saved an intermediate",
        (_HOOKS + "higher_derivatives_of_functions_that_save_what_they_made", _WRAPPERS + "a_gradient_penalty"),
    ),
    Hazard(
        "pytorch/pytorch#703",
        "the workspace of a recurrent layer is changed, or can be read once only",
        (_HOOKS + "recurrent_layers_run_backward_twice_with_their_bytes_untouched",
         "tests/rules/test_choice.py::test_recurrent_layers_on_the_cpu",
         "tests/rules/test_elsewhere.py::test_a_recurrent_cell_of_cuda_is_left_alone"),
    ),
    Hazard(
        "pytorch/pytorch#18619",
        "the second derivative of a function that saved its output, taken twice",
        (_HOOKS + "higher_derivatives_of_functions_that_save_what_they_made", _NODES + "gradcheck_to_second_order"),
    ),
    Hazard(
        "pytorch/pytorch#147995",
        "a mode that acts in forward and not in recomputation",
        (_NODES + "checkpoints_recompute_once_and_nothing_in_them_is_coded",
         _NODES + "other_function_modes_and_default_devices_go_along"),
    ),
)  # fmt: skip

_COMPILERS = (
    Hazard(
        "pytorch/pytorch#148222",
        "hooks around a compiled model unpack everything at once",
        (_COMPILED + "around_a_compiled_region", _COMPILED + "around_a_region_compiled_by_the_default_backend"),
        later="coding inside compiled regions",
    ),
    Hazard(
        "pytorch/pytorch#116221",
        "a compiled function ignores hooks, and nothing says so",
        (_COMPILED + "around_a_compiled_region", _COMPILED + "what_is_entered_in_a_compiled_region_is_not_there",
         _COMPILED + "compiling_codes_nothing_and_draws_no_seed"),
        later="coding inside compiled regions",
    ),
    Hazard(
        "pytorch/pytorch#113263",
        "hooks are called on fake tensors while a region is compiled",
        (_COMPILED + "compiling_codes_nothing_and_draws_no_seed",),
    ),
    Hazard(
        "pytorch/pytorch#134361",
        "compiled autograd packs everything twice",
        (_COMPILED + "compiled_autograd_reads_each_code_once",),
    ),
    Hazard(
        "pytorch/pytorch#180287",
        "a tensor that is saved and handed out too",
        (_COMPILED + "saved_tensors_that_are_outputs_too_stay_exact",),
    ),
    Hazard(
        "pytorch/pytorch#197838",
        "the setting for less memory takes more",
        (_NUMBERS + "more_bits_never_take_less_memory",),
        later="fitting a budget",
    ),
    Hazard(
        "pytorch/pytorch#141881",
        "copies of all weights in another dtype are kept for backward",
        (_COMPILED + "a_compiled_region_saves_what_it_saves_without_us",
         _SAVED + "weights_cast_by_autocast_are_never_coded"),
    ),
    Hazard(
        "pytorch/pytorch#122512",
        "graph breaks, and the memory that lives on across them",
        (_COMPILED + "what_is_entered_in_a_compiled_region_is_not_there", _COMPILED + "around_a_compiled_region",
         _COMPILED + "graph_breaks_with_a_context_around_inside_and_attached"),
    ),
    Hazard(
        "pytorch/pytorch#94990",
        "saved views pile up where backward never runs",
        (_COMPILED + "views_that_are_saved_and_never_run_backward_pile_up_nowhere",),
    ),
    Hazard(
        "pytorch/pytorch#130104",
        "function modes break the graph",
        (_COMPILED + "other_function_modes_and_ours_compile_together",),
    ),
)  # fmt: skip

_PEERS = (
    Hazard(
        "meta-pytorch/torchtune#1867",
        "memory that was unpacked is reused while a view of it is still read",
        (_OWNERS + "a_gradient_that_is_a_view_of_what_was_unpacked_outlives_it",
         _OWNERS + "work_stays_on_the_callers_stream_and_errors_are_raised"),
    ),
    Hazard(
        "meta-pytorch/torchtune#2456",
        "what was saved on the CPU comes back on the GPU",
        (_OWNERS + "tensors_of_several_devices_come_back_to_their_own",),
    ),
    Hazard(
        "bghira/SimpleTuner#2521",
        "one device is remembered for a graph of several",
        (_OWNERS + "tensors_of_several_devices_come_back_to_their_own",),
    ),
    Hazard(
        "huggingface/trl#5700",
        "what is cleared when the context ends is missing in a backward after it, or leaks if it isn't",
        (_COMPRESS + "backward_may_run_inside_after_and_twice", _COMPRESS + "a_step_after_an_exception_in_forward_is_right",
         _SAVED + "nothing_grows_over_steps", _SAVED + "a_failed_forward_is_freed"),
    ),
    Hazard(
        "huggingface/trl#4280",
        "adapters on frozen layers: some of what is saved is never read",
        (_OWNERS + "an_adapter_that_rests_in_one_of_four_batches", _WRAPPERS + "exact_codes_change_no_bit[walk-lora]",
         _WRAPPERS + "inputs_of_frozen_layers_cost_nothing"),
    ),
    Hazard(
        "meta-pytorch/torchtune#2683",
        "tensor parallelism trains worse with it than without",
        (_TWO_PROCESSES + "[tensor parallel]",),
    ),
    Hazard(
        "huggingface/trl#4247",
        "one storage is kept once for each view of it, weights too",
        (_SAVED + "query_key_and_value_of_one_tensor_share_one_code", _SAVED + "three_layers_of_one_input_keep_one_code",
         _SAVED + "weights_are_never_coded[walk-transposed-trained]"),
    ),
    Hazard(
        "NVIDIA/Megatron-LM#7398",
        "a copy is read before it has arrived",
        (_SAVED + "every_unpack_gives_a_fresh_tensor_with_the_same_bits",
         _OWNERS + "work_stays_on_the_callers_stream_and_errors_are_raised",
         _OFFLOAD + "on_a_gpu_codes_lie_in_pinned_host_memory"),
    ),
    Hazard(
        "nvidia-cosmos/cosmos-rl#317",
        "NaN after hundreds of steps",
        ("tests/test_soak.py::test_steps", "tests/test_soak.py::test_steps_of_several_threads"),
    ),
    Hazard(
        "meta-llama/llama-cookbook#115",
        "gathered weights are kept, so that sharding frees nothing",
        (_OWNERS + "weights_that_are_freed_after_forward_are_read_as_they_are_in_backward", _TWO_PROCESSES + "[fsdp2]"),
    ),
    Hazard(
        "pytorch/ao#562",
        "a weight in another dtype is taken for an activation",
        (_SAVED + "weights_cast_by_autocast_are_never_coded", _SAVED + "weights_are_never_coded[walk-cast-trained]"),
    ),
    Hazard(
        "bitsandbytes-foundation/bitsandbytes#1935",
        "weights unpacked for one forward are kept as activations",
        (_OWNERS + "weights_unpacked_anew_for_each_forward_are_never_coded",),
    ),
    Hazard(
        "facebookresearch/fairscale#947",
        "originals stay because the user holds them, and nothing says so",
        (_ACCOUNT + "what_the_caller_keeps_is_reported_as_held",),
    ),
    Hazard(
        "hpcaitech/ColossalAI#643",
        "next to nothing is saved of what was promised",
        (_OWNERS + "memory_falls_by_what_was_predicted",
         "tests/test_families.py::test_originals_are_free_after_forward_and_codes_fall_node_by_node",
         "tests/bench/test_step.py::test_the_peak_of_a_real_step_is_made_of_its_parts"),
    ),
)  # fmt: skip

_LOOPS = (
    Hazard(
        "pytorch/pytorch#96136",
        "statistics of batch norms are updated twice",
        (_COMPRESS + "the_forward_is_the_same_whatever_the_method",
         _TRAINING + "twenty_steps_of_lossless_training_are_those_of_plain_training",
         _ACCOUNT + "every_record_says_what_became_of_it"),
    ),
    Hazard(
        "facebookresearch/fairscale#694",
        "a synchronised batch norm gathers once more than it should, or other statistics",
        (_TRAINING + "statistics_gathered_from_other_processes",),
    ),
    Hazard(
        "allenai/OLMo-core#828",
        "dropout masks differ because random numbers are drawn",
        (_COMPRESS + "the_forward_is_the_same_whatever_the_method", _SEEDS + "the_global_random_state_is_never_touched",
         "tests/methods/test_methods.py::test_signs_masks_and_indices_are_exact_under_every_method"),
    ),
    Hazard(
        "unslothai/unsloth-zoo#1218",
        "a wrapper drops an argument of what it wraps",
        (_TRAINING + "calls_are_handed_on_as_they_are_made", _NODES + "disabled_is_a_decorator_too"),
    ),
    Hazard(
        "pytorch/pytorch#37730",
        "recomputation outside of autocast",
        (_TRAINING + "one_weight_in_two_checkpoints_under_autocast", _COMPRESS + "exact_codes_change_no_bit_under_autocast",
         _WRAPPERS + "the_scaler_skips_a_step_whose_activation_overflowed"),
    ),
    Hazard(
        "pytorch/pytorch#193338",
        "selective checkpoints count the casts of a weight that autocast has cast before",
        (_TRAINING + "one_weight_in_two_checkpoints_under_autocast",),
    ),
    Hazard(
        "pytorch/pytorch#48439",
        "channels-last tensors come back in another layout",
        (_SAVED + "unpacked_tensors_have_the_shape_dtype_and_strides_that_were_saved",
         _COMPRESS + "exact_codes_change_no_bit_in_channels_last"),
    ),
    Hazard(
        "pytorch/pytorch#171622",
        "a compiler expects other strides of a channels-last convolution",
        (_COMPILED + "transposed_convolutions_in_channels_last_compile",),
    ),
    Hazard(
        "pytorch/pytorch#176420",
        "strides of dims of one element are not those that were saved",
        ("tests/codecs/test_contract.py::test_codes_do_not_depend_on_the_layout",
         "tests/codecs/test_shape.py::test_strides_dtype_and_size_come_back",
         "tests/codecs/test_layout.py::test_dense_strides_stay_as_they_are"),
    ),
    Hazard(
        "huggingface/accelerate#3536",
        "a backward within backward makes data-parallel training fail",
        (_TWO_PROCESSES + "[ddp]",),
    ),
    Hazard(
        "deepspeedai/DeepSpeed#8148",
        "a weight that was put away is read as it was then, or empty",
        (_OWNERS + "weights_that_are_freed_after_forward_are_read_as_they_are_in_backward",),
    ),
    Hazard(
        "huggingface/transformers#28022",
        "it has no effect, and nothing tells why",
        (_ACCOUNT + "a_step_that_saved_nothing_says_so", _ACCOUNT + "eval_mode_alone_is_accounted_as_any_other",
         _ACCOUNT + "every_record_says_what_became_of_it"),
    ),
    Hazard(
        "huggingface/transformers#26221",
        "what should change no result does",
        (_TRAINING + "twenty_steps_of_lossless_training_are_those_of_plain_training",
         _COMPRESS + "exact_codes_change_no_bit"),
    ),
    Hazard(
        "unslothai/unsloth#2362",
        "it is on although it was turned off",
        (_COMPRESS + "after_the_context_nothing_is_coded", _ATTACH + "nothing_in_the_model_changes",
         _ATTACH + "remove_twice_and_a_model_that_is_gone", _ATTACH + "copies_and_pickles_are_plain_models"),
    ),
    Hazard(
        "meta-pytorch/opacus#652",
        "hooks of other tools no longer fire",
        (_NODES + "hooks_of_modules_and_tensors_fire_as_without_us",),
    ),
)  # fmt: skip

_CODECS = (
    Hazard(
        "pytorch/pytorch#36888",
        "a range of zero is divided by",
        ("tests/codecs/test_dual.py::test_constant_planes_are_exact", "tests/codecs/test_group.py::test_constant_groups",
         "tests/codecs/test_dual.py::test_special_planes_are_those_of_the_definition"),
    ),
    Hazard(
        "pytorch/ao#3356",
        "rows of zeros, as of adapters that begin at zero, give NaN",
        (_OWNERS + "adapters_that_begin_at_zero_have_finite_gradients",),
    ),
    Hazard(
        "pytorch/ao#3171",
        "ranges of 16-bit tensors are taken in 16 bits",
        (_NUMBERS + "ranges_of_16_bit_tensors_are_taken_in_full_precision",
         "tests/codecs/test_contract.py::test_no_element_is_off_by_more_than_a_step"),
    ),
    Hazard(
        "unslothai/unsloth#6772",
        "one outlier wipes out all other values",
        ("tests/codecs/test_group.py::test_an_outlier_costs_its_own_group_alone",),
    ),
    Hazard(
        "bitsandbytes-foundation/bitsandbytes#2067",
        "more than 2 to the 31 elements",
        ("tests/kernels/gpu/test_group.py::test_more_than_two_to_the_31_elements",
         "tests/kernels/gpu/test_bits.py::test_more_than_two_to_the_31_elements",
         "tests/kernels/cpu/test_dual.py::test_offsets_beyond_two_to_the_31"),
    ),
    Hazard(
        "vllm-project/vllm#53390",
        "offsets of 32 bits overflow",
        ("tests/kernels/gpu/test_dual.py::test_offsets_beyond_2_to_the_31",
         "tests/kernels/gpu/test_group.py::test_elements_more_than_two_to_the_31_apart",
         "tests/kernels/gpu/test_bits.py::test_elements_more_than_two_to_the_31_apart",
         "tests/kernels/gpu/test_index.py::test_elements_more_than_two_to_the_31_apart",
         "tests/kernels/cpu/test_group.py::test_offsets_beyond_two_to_the_31"),
    ),
)  # fmt: skip

_RESEARCH = (
    Hazard(
        "ucbrise/actnn#35",
        "the code is larger than what it stands for",
        ("tests/codecs/test_contract.py::test_packed_bytes_are_those_of_the_formula",
         "tests/kernels/cpu/test_memory.py::test_at_most_a_fiftieth_of_the_tensor_and_a_mebibyte_a_thread",
         _SAVED + "nothing_is_stored_larger_than_it_was"),
    ),
    Hazard(
        "ucbrise/actnn#29",
        "layers are replaced by others, which train differently even without compression",
        (_COMPRESS + "exact_codes_change_no_bit[walk-conv-kinds-copying]", _ATTACH + "nothing_in_the_model_changes"),
    ),
    Hazard(
        "ucbrise/actnn#26",
        "modules of the user's own fail in backward",
        (_COMPRESS + "exact_codes_change_no_bit[walk-in-place-copying]",
         _ATTACH + "a_module_used_twice_and_a_recursive_one",
         "tests/test_families.py::test_exact_codes_change_no_bit_of_any_architecture"),
    ),
    Hazard(
        "ucbrise/actnn#25",
        "it works with two releases of PyTorch",
        ("tests/test_layers.py::test_private_names_of_torch_are_read_in_one_place",
         "tests/rules/test_choice.py::test_names_exist_in_this_torch",
         "tests/test_package.py::test_only_torch_and_numpy_are_required"),
    ),
    Hazard(
        "ucbrise/actnn#7",
        "of transformers, linear layers alone are covered",
        (_NUMBERS + "a_transformer_block_is_covered",),
    ),
    Hazard(
        "LiuXiaoxuanPKU/GACT-ICML#1",
        "an extension built for another PyTorch does not load; some shapes and dtypes are skipped in silence",
        ("tests/kernels/cpu/test_library.py::test_a_library_that_does_not_load_is_said_and_left",
         "tests/kernels/cpu/test_library.py::test_without_the_library_everything_runs_and_the_reason_is_said",
         _NUMBERS + "every_shape_and_dtype_is_coded_or_the_reason_is_told"),
    ),
)  # fmt: skip

_UNPOSTED = (
    Hazard(
        "an option left at its default",
        "an option left out means something else than its documented default",
        (_NUMBERS + "defaults_are_what_they_are_said_to_be",),
    ),
    Hazard(
        "weights known by address, masks by their values",
        "weights that moved are compressed, a user's bytes are taken for a mask, and packing waits for the GPU",
        (_OWNERS + "weights_that_moved_since_are_weights", _NUMBERS + "other_dtypes_come_back_bit_for_bit",
         _NUMBERS + "no_value_is_waited_for", _GPU + "no_step_waits_for_the_gpu"),
    ),
    Hazard(
        "two to four dims and two dtypes",
        "detached branches, 5-dim tensors and bfloat16 are skipped; an error ends the process",
        (_NUMBERS + "no_kind_of_network_is_left_out_in_silence",
         _NUMBERS + "every_shape_and_dtype_is_coded_or_the_reason_is_told",
         _OWNERS + "work_stays_on_the_callers_stream_and_errors_are_raised"),
    ),
    Hazard(
        "shared by a sample of the values",
        "two tensors are taken for one because a hundred elements and the sum agree",
        (_NUMBERS + "tensors_that_differ_in_one_element_share_no_code",
         _SAVED + "a_reused_address_is_never_taken_for_the_old_tensor",
         _SAVED + "a_version_between_two_saves_makes_two_codes"),
    ),
    Hazard(
        "passed through without the check",
        "hooks take PyTorch's check for changes in place away from what they let through",
        (_HOOKS + "what_is_passed_through_keeps_the_check_for_changes_in_place",
         _SAVED + "a_left_tensor_changed_in_place_later_still_raises",
         _SAVED + "an_original_kept_instead_of_a_code_is_still_checked_for_changes_in_place"),
    ),
    Hazard(
        "another dtype out than in",
        "autograd accepts an unpacked tensor of another dtype or size",
        (_SAVED + "a_codec_that_gives_back_something_else_is_named",),
    ),
    Hazard(
        "the stream of the constructor",
        "work goes to the stream that was current when the object was made",
        (_GPU + "a_context_made_on_one_stream_works_on_another", _SAVED + "two_contexts_share_no_code",
         _OWNERS + "work_stays_on_the_callers_stream_and_errors_are_raised"),
    ),
    Hazard(
        "bool, integers, complex, float64, float8",
        "dtypes beside float32 are changed or fail",
        (_SAVED + "other_dtypes_give_right_or_no_code", _SAVED + "integers_that_backward_reads_stay_exact",
         _NUMBERS + "other_dtypes_come_back_bit_for_bit", _SWEEP + "every_op_with_exact_codes"),
    ),
    Hazard(
        "NaN and infinity",
        "an overflow is hidden from the scaler, or an infinity that is meant becomes NaN",
        (_WRAPPERS + "an_overflow_that_only_the_codes_carry_reaches_the_scaler",
         "tests/codecs/test_dual.py::test_a_plane_with_a_value_that_is_not_finite_decodes_to_nan",
         "tests/codecs/test_group.py::test_a_group_with_a_value_that_is_not_finite_decodes_to_nan",
         _NUMBERS + "masked_logits_keep_their_gradient_finite", _SWEEP + "every_op_with_lossy_codes"),
    ),
    Hazard(
        "signs of values near zero",
        "a ReLU's backward passes what its forward stopped",
        ("tests/methods/test_methods.py::test_signs_masks_and_indices_are_exact_under_every_method",
         "tests/rules/test_uses.py::test_only_the_side_is_read", "tests/codecs/test_bits.py::test_bits_say_which_side"),
    ),
    Hazard(
        "graphs that are captured and replayed",
        "capture fails at a wait, or each replay has the noise of the first",
        (_GPU + "a_captured_step_replays_as_it_ran", _NUMBERS + "no_value_is_waited_for"),
        later="noise that advances from replay to replay",
    ),
    Hazard(
        "several forwards, then several backwards",
        "one backward is expected after each forward",
        (_COMPRESS + "gradients_accumulate_in_any_order", _WRAPPERS + "accumulated_gradients_are_close_under_division"),
    ),
    Hazard(
        "state added to the model",
        "running ranges become entries of the model's state",
        (_ATTACH + "nothing_in_the_model_changes", _SEEDS + "a_run_resumes_to_the_same_bits",
         _SEEDS + "an_attached_model_resumes_to_the_same_bits"),
    ),
    Hazard(
        "compiled anew each step",
        "hooks made afresh for each step have the region compiled again",
        (_COMPILED + "around_a_compiled_region", _COMPILED + "what_is_entered_in_a_compiled_region_is_not_there"),
    ),
    Hazard(
        "every saved tensor quantised",
        "weights that backward reads are quantised too",
        (_OWNERS + "what_depends_on_weights_alone_is_exact", _SAVED + "weights_are_never_coded"),
    ),
)  # fmt: skip

HAZARDS: tuple[Hazard, ...] = (*_AUTOGRAD, *_COMPILERS, *_PEERS, *_LOOPS, *_CODECS, *_RESEARCH, *_UNPOSTED)
